"""One trial under overload: the load on a fleet, and what clients of each priority got from which tier, when."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from loadtests.client import PATIENCE_S, Record, open_loop
from loadtests.fleet import MODEL, Fleet
from loadtests.overload_load import Stream, questions
from loadtests.trial import TTFT_SLO_S

REPLICAS, SLOTS, SERVICE_S = 2, 8, 1.0
CAPACITY_PER_S = REPLICAS * SLOTS / SERVICE_S
DEAD_BAND = 0.15
"""The degraded share has turned when it has moved this far from its last extreme."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. `due_s` counts from the beginning of the load."""

    due_s: float
    priority: str
    in_time: bool
    """Whole, every token right, the first within the SLO."""
    tier: str
    is_degraded: bool
    status: int
    ttft_s: float | None
    took_s: float
    lag_s: float
    reason: str
    has_retry_after: bool

    @property
    def is_top(self) -> bool:
        return self.in_time and not self.is_degraded

    @property
    def is_refused(self) -> bool:
        return self.status in (429, 503)

    @property
    def is_explained(self) -> bool:
        """A refusal that says why and, as far as waiting helps, for how long."""
        return bool(self.reason) and (self.status != 429 or self.has_retry_after)


def outcome_of(record: Record, begun_at: float) -> Outcome:
    headers = record.headers
    return Outcome(
        due_s=record.due_at - begun_at,
        priority=record.question.headers["x-priority"],
        in_time=record.is_in_time(TTFT_SLO_S),
        tier=headers.get("x-served-tier", ""),
        is_degraded="x-degraded" in headers,
        status=record.status,
        ttft_s=record.ttft_s,
        took_s=record.ended_at - record.started_at,
        lag_s=record.lag_s,
        reason=headers.get("x-shed-reason", ""),
        has_retry_after="retry-after" in headers,
    )


@dataclass(frozen=True, slots=True)
class OverloadTrial:
    """What came of all of them."""

    outcomes: tuple[Outcome, ...]
    streams: tuple[Stream, ...]

    @property
    def duration_s(self) -> float:
        return max(stream.ends_s for stream in self.streams)

    def of(self, *priorities: str) -> list[Outcome]:
        return [o for o in self.outcomes if o.priority in priorities]

    def due_between(self, begins_s: float, ends_s: float) -> list[Outcome]:
        return [o for o in self.outcomes if begins_s <= o.due_s < ends_s]

    @property
    def goodput(self) -> float:
        """Answers whole and in time, as a share of what the primary could have given while the load lasted."""
        return sum(o.in_time for o in self.outcomes) / (CAPACITY_PER_S * self.duration_s)

    @property
    def primary_use(self) -> float:
        """Answers of the top tier, as a share of what it could have given, or of what was asked if that is less."""
        could = min(CAPACITY_PER_S * self.duration_s, len(self.outcomes))
        return sum(o.is_top for o in self.outcomes) / could

    def refused(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.is_refused]

    def reasons(self) -> dict[str, int]:
        return dict(sorted(Counter(o.reason or "none" for o in self.refused()).items()))

    def shares_by_second(self) -> dict[str, list[float]]:
        """What share of the requests due in each second each tier answered in time, and what was refused."""
        seconds = [self.due_between(s, s + 1.0) for s in range(int(self.duration_s))]
        tiers = sorted({o.tier for o in self.outcomes if o.tier})
        found = {tier: [_share(due, partial(_is_served_by, tier)) for due in seconds] for tier in tiers}
        return found | {"refused": [_share(due, lambda o: o.is_refused) for due in seconds]}

    def turns(self) -> int:
        """Changes of direction of the degraded share, second by second."""
        return turns([share_degraded(self.due_between(s, s + 1.0)) for s in range(int(self.duration_s))])

    def back_on_top_s(self, after_s: float) -> float:
        """How long after `after_s` the last request was due that the top tier did not answer in time."""
        return max([0.0, *(o.due_s - after_s for o in self.outcomes if not o.is_top)])


def _is_served_by(tier: str, outcome: Outcome) -> bool:
    return outcome.in_time and outcome.tier == tier


def _share(outcomes: Sequence[Outcome], holds: Callable[[Outcome], bool]) -> float:
    return round(sum(map(holds, outcomes)) / len(outcomes), 3) if outcomes else 0.0


def share_in_time(outcomes: Sequence[Outcome]) -> float:
    return sum(o.in_time for o in outcomes) / len(outcomes) if outcomes else 1.0


def share_degraded(outcomes: Sequence[Outcome]) -> float:
    return sum(o.is_degraded for o in outcomes) / len(outcomes) if outcomes else 0.0


def quantile(values: Sequence[float], q: float) -> float:
    in_order = sorted(values)
    return in_order[min(int(len(in_order) * q), len(in_order) - 1)] if in_order else 0.0


def turns(shares: Sequence[float]) -> int:
    """How often a curve changes its direction; moves within `DEAD_BAND` don't count."""
    count, direction, extreme = 0, 0, shares[0]
    for value in shares:
        moved = value - extreme
        if direction and moved * direction >= 0:
            extreme = value
        elif abs(moved) > DEAD_BAND:
            count += direction != 0
            direction, extreme = (1 if moved > 0 else -1), value
    return count


async def run_overload(
    fleet: Fleet, streams: Sequence[Stream], tokens: int, seed: int, patience_s: float = PATIENCE_S
) -> OverloadTrial:
    """Runs the load to its end."""
    asked, due_s = questions(streams, CAPACITY_PER_S, tokens, seed)
    begun_at = asyncio.get_running_loop().time() + 0.1
    records = await open_loop(fleet.urls, MODEL, asked, due_s, begun_at, patience_s)
    return OverloadTrial(tuple(outcome_of(r, begun_at) for r in records), tuple(streams))
