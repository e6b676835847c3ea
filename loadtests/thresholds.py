"""Limits that a run must keep: read from Locust's statistics at its end, they decide its exit status."""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Protocol

ASKED, SHED, DEGRADED = "ask", "shed", "degraded"
TTFT, TOKEN_GAP, LONGEST_GAP = "TTFT", "token gap", "longest gap"
LAG = "generator lag"
"""The types under which a run's entries are kept; their names say which users or which reason."""

_HELP = {
    "max_failed_share": "of all requests: neither whole nor refused as declared",
    "max_shed_share": "of all requests: refused as declared",
    "max_degraded_share": "of all requests: answered by a lower tier",
    "max_ttft_p99_s": "from due to first token",
    "max_gap_p99_s": "the longest silence within an answer",
    "max_lag_p99_s": "how late the load generator itself was",
    "min_asked": "fewer requests than that decide nothing",
}


class Entry(Protocol):
    """One line of Locust's statistics. Times are milliseconds."""

    method: str
    name: str
    num_requests: int
    num_failures: int
    response_times: dict[int, int]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Shares are 0 to 1, times in seconds; None is no limit."""

    max_failed_share: float | None = 0.0
    max_shed_share: float | None = None
    max_degraded_share: float | None = None
    max_ttft_p99_s: float | None = None
    max_gap_p99_s: float | None = None
    max_lag_p99_s: float | None = 0.1
    min_asked: float | None = 1.0

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group("limits that fail the run")
        for field in fields(cls):
            flag = f"--{field.name.replace('_', '-')}"
            group.add_argument(flag, type=_limit, default=field.default, help=_HELP[field.name])

    @classmethod
    def read(cls, parsed: argparse.Namespace) -> "Thresholds":
        return cls(**{field.name: getattr(parsed, field.name) for field in fields(cls)})

    def misses(self, entries: Iterable[Entry]) -> list[str]:
        """What was not kept, in words."""
        figures = figures_of(entries)
        found: list[str] = []
        for field in fields(self):
            limit, value = getattr(self, field.name), figures[field.name]
            is_least = field.name.startswith("min")
            if limit is not None and (value < limit if is_least else value > limit):
                found.append(f"{_name(field.name)} is {value:.4g}, limit {limit:g}")
        return found


def _limit(text: str | None) -> float | None:
    return None if text in (None, "", "none") else float(text)


def _name(field: str) -> str:
    return field.partition("_")[2].replace("_", " ")


def figures_of(entries: Iterable[Entry]) -> dict[str, float]:
    """The figures that the limits are about, by the limits' names."""
    by_type: dict[str, list[Entry]] = {}
    for entry in entries:
        by_type.setdefault(entry.method, []).append(entry)
    asked = _count(by_type, ASKED)
    failed = sum(entry.num_failures for entry in by_type.get(ASKED, ()))
    return {
        "max_failed_share": failed / asked if asked else 0.0,
        "max_shed_share": _count(by_type, SHED) / asked if asked else 0.0,
        "max_degraded_share": _count(by_type, DEGRADED) / asked if asked else 0.0,
        "max_ttft_p99_s": quantile_s(by_type.get(TTFT, ()), 0.99),
        "max_gap_p99_s": quantile_s(by_type.get(LONGEST_GAP, ()), 0.99),
        "max_lag_p99_s": quantile_s(by_type.get(LAG, ()), 0.99),
        "min_asked": float(asked),
    }


def _count(by_type: dict[str, list[Entry]], kind: str) -> int:
    return sum(entry.num_requests for entry in by_type.get(kind, ()))


def quantile_s(entries: Iterable[Entry], q: float) -> float:
    """A quantile over several entries together; 0 where there is nothing."""
    counts: dict[int, int] = {}
    for entry in entries:
        for ms, count in entry.response_times.items():
            counts[ms] = counts.get(ms, 0) + count
    left = sum(counts.values()) * q
    for ms in sorted(counts):
        left -= counts[ms]
        if left <= 0:
            return ms / 1000
    return 0.0
