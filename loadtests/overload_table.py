"""The overload table: what clients get from two replicas (16 requests/s) when many times more is asked.

`python -m loadtests.overload_table` runs every row and exits 1 if one misses its target. The first row is a control
run without admission: the same load straight to the replicas, where it collapses. A row whose load generator was late
says so: its machine was too small for it, or too busy.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import uvloop

from loadtests.fleet import Plan, running
from loadtests.overload_rows import SMALL_SERVICE_S, SPIKE_BEGINS_S, SPIKE_S, Row, rows
from loadtests.overload_trial import (
    REPLICAS,
    SERVICE_S,
    SLOTS,
    Outcome,
    OverloadTrial,
    quantile,
    run_overload,
    share_degraded,
    share_in_time,
)
from loadtests.own_time import own_refusal_s

LAG_TOLD_MS = 50.0
_HEAD = (
    f"{'load':<12}{'asked':>6}{'in time':>9}{'critical':>10}{'others':>9}{'primary':>9}{'goodput':>9}{'degraded':>10}"
    f"{'refused':>9}{'p50 ms':>8}{'p99 ms':>8}{'own p99':>9}{'turns':>6}{'back s':>8}{'lag ms':>8}  verdict"
)


@dataclass(frozen=True, slots=True)
class Result:
    """One row as it came out."""

    load: str
    asked: int
    in_time: float
    critical_in_time: float
    others_in_time: float
    primary_use: float
    goodput: float
    degraded: float
    refused: int
    reasons: dict[str, int]
    refusal_p50_ms: float
    refusal_p99_ms: float
    own_p99_ms: float | None
    """The gateway's own part of that, from the request's last byte read to the refusal written; an upper bound."""
    turns: int
    back_s: float | None
    lag_p99_ms: float
    degraded_by_second: list[float]
    shares_by_second: dict[str, list[float]]
    """By tier, and of what was refused."""
    misses: list[str]
    late: list[Outcome]
    """Requests that got an answer too late, or a refusal too late."""

    def line(self) -> str:
        verdict = "; ".join(self.misses) or "kept"
        if self.lag_p99_ms > LAG_TOLD_MS:
            verdict += " (the load generator itself was late)"
        own = "" if self.own_p99_ms is None else f"≤ {self.own_p99_ms:g}"
        back = "" if self.back_s is None else f"{self.back_s:.1f}"
        return (
            f"{self.load:<12}{self.asked:>6}{self.in_time:>9.1%}{self.critical_in_time:>10.2%}"
            f"{self.others_in_time:>9.1%}{self.primary_use:>9.1%}{self.goodput:>9.1%}{self.degraded:>10.1%}"
            f"{self.refused:>9}{self.refusal_p50_ms:>8.1f}{self.refusal_p99_ms:>8.1f}{own:>9}{self.turns:>6}{back:>8}"
            f"{self.lag_p99_ms:>8.1f}  {verdict}"
        )


def summarized(row: Row, trial: OverloadTrial, own_p99_s: float | None = None) -> Result:
    outcomes, refusals_s = trial.outcomes, [o.took_s for o in trial.refused()]
    seconds = [share_degraded(trial.due_between(s, s + 1.0)) for s in range(int(trial.duration_s))]
    return Result(
        load=row.name,
        asked=len(outcomes),
        in_time=share_in_time(outcomes),
        critical_in_time=share_in_time(trial.of("critical")),
        others_in_time=share_in_time(trial.of("standard", "sheddable")),
        primary_use=trial.primary_use,
        goodput=trial.goodput,
        degraded=share_degraded(outcomes),
        refused=len(refusals_s),
        reasons=trial.reasons(),
        refusal_p50_ms=quantile(refusals_s, 0.5) * 1e3,
        refusal_p99_ms=quantile(refusals_s, 0.99) * 1e3,
        own_p99_ms=None if own_p99_s is None else own_p99_s * 1e3,
        turns=trial.turns(),
        back_s=trial.back_on_top_s(SPIKE_BEGINS_S + SPIKE_S) if row.name == "spike" else None,
        lag_p99_ms=quantile([o.lag_s for o in outcomes], 0.99) * 1e3,
        degraded_by_second=[round(share, 3) for share in seconds],
        shares_by_second=trial.shares_by_second(),
        misses=row.misses(trial),
        late=[
            o for o in outcomes if (not o.in_time and not o.is_refused) or (o.is_refused and o.took_s > 0.005)
        ],
    )


def plan_of(row: Row, tokens: int) -> Plan:
    """A second a request on the primary, a quarter of one on the small tier."""
    return Plan(
        front=row.front,
        replicas=REPLICAS,
        slots=SLOTS,
        token_ms=SERVICE_S * 1e3 / tokens,
        has_small_tier=row.has_small_tier,
        small_token_ms=SMALL_SERVICE_S * 1e3 / tokens,
    )


async def run_row(row: Row, tokens: int, seed: int) -> Result:
    """One row on a fleet of its own."""
    async with running(plan_of(row, tokens)) as fleet:
        trial = await run_overload(fleet, row.streams, tokens, seed)
        own_p99_s = await own_refusal_s(fleet.urls[0], 0.99) if row.front == "graceway" else None
        return summarized(row, trial, own_p99_s)


async def run_table(chosen: Sequence[Row], tokens: int, seed: int) -> list[Result]:
    say(_HEAD)
    results: list[Result] = []
    for row in chosen:
        results.append(await run_row(row, tokens, seed))
        say(results[-1].line())
    return results


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _chosen(names: str, pulse_count: int) -> list[Row]:
    known = {row.name: row for row in rows(pulse_count)}
    if names == "all":
        return list(known.values())
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise SystemExit(f"no row {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overload_table", description=__doc__)
    names = ", ".join(row.name for row in rows()).replace("%", "%%")
    parser.add_argument("--rows", default="all", help=f"of {names}")
    parser.add_argument("--tokens", type=int, default=50, help="an answer's; fewer cost the machine less")
    parser.add_argument("--pulses", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="writes the results there, too")
    return parser


def main() -> None:
    arguments = _parser().parse_args()
    chosen = _chosen(arguments.rows, arguments.pulses)
    results = uvloop.run(run_table(chosen, arguments.tokens, arguments.seed))
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))
    sys.exit(1 if any(result.misses for result in results) else 0)


if __name__ == "__main__":
    main()
