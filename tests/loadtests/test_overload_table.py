"""The overload table's own judgement: loads as they were meant, and rows that tell a miss from a promise kept."""

import random
from dataclasses import replace

import pytest

from loadtests.fleet import running
from loadtests.overload_load import Stream, in_sequence, steady
from loadtests.overload_rows import REFUSED_WITHIN_S, rows
from loadtests.overload_table import plan_of
from loadtests.overload_trial import CAPACITY_PER_S, Outcome, OverloadTrial, run_overload, turns

BY_NAME = {row.name: row for row in rows(2)}
SERVED = Outcome(0.0, "standard", True, "primary", False, 200, 0.1, 1.0, 0.0, "", False)
DEGRADED = replace(SERVED, tier="small", is_degraded=True)
REFUSED = replace(SERVED, in_time=False, tier="", status=429, ttft_s=None, took_s=0.001, reason="queue_full",
                  has_retry_after=True)  # fmt: skip


def trial(name: str, *outcomes: Outcome, lasts_s: float = 1.0) -> list[str]:
    """What the row says when each of these is due once a request's share of the time."""
    row = BY_NAME[name]
    spread = tuple(replace(o, due_s=i * lasts_s / len(outcomes)) for i, o in enumerate(outcomes))
    return row.misses(OverloadTrial(spread, (steady(3.0, lasts_s),)))


def test_arrivals_follow_the_rate() -> None:
    stream = Stream(2.0, 12.0, 0.0, 2.0, {"critical": 0.25, "standard": 0.75})
    arrivals = stream.arrivals(100.0, random.Random(1))
    first, second = (sum(a <= due < a + 5.0 for due, _ in arrivals) for a in (2.0, 7.0))
    assert (first, second) == (pytest.approx(250, abs=50), pytest.approx(750, abs=80))
    assert sum(p == "critical" for _, p in arrivals) == pytest.approx(250, abs=50)


def test_phases_follow_each_other() -> None:
    one, other = in_sequence((5.0, 1.0, 2.0), (3.0, 2.0, 0.0))
    assert (one.k(2.5), one.k(5.0), other.k(6.5), other.ends_s) == (1.5, 0.0, 1.0, 8.0)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([0.0, 0.0, 0.1, 0.0, 0.1], 0),
        ([0.0, 0.5, 0.9, 0.95, 0.9], 0),
        ([0.0, 0.9, 0.9, 0.0, 0.0], 1),
        ([0.0, 0.9, 0.0, 0.9, 0.0], 3),
        ([0.0, 0.1, 0.2, 0.3, 0.2, 0.1, 0.0], 1),
    ],
)
def test_turns(shares: list[float], expected: int) -> None:
    assert turns(shares) == expected


class TestWithoutASmallTier:
    served, refused = [SERVED] * 15 + [replace(SERVED, priority="critical")], [REFUSED] * 32

    def test_kept(self) -> None:
        assert trial("3x", *self.served, *self.refused) == []

    @pytest.mark.parametrize(
        ("worse", "complaint"),
        [
            (replace(SERVED, in_time=False), "goodput"),
            (replace(REFUSED, priority="critical"), "critical"),
            (replace(REFUSED, took_s=2 * REFUSED_WITHIN_S), "refusals take"),
            (replace(REFUSED, has_retry_after=False), "without a reason"),
            (replace(REFUSED, reason=""), "without a reason"),
            (replace(SERVED, in_time=False, status=0), "neither answered nor refused"),
        ],
    )
    def test_missed(self, worse: Outcome, complaint: str) -> None:
        misses = trial("3x", *self.served[1:], worse, *self.refused)
        assert any(complaint in miss for miss in misses)


def test_a_critical_request_on_the_small_tier_is_a_miss() -> None:
    misses = trial("3x-small", *[SERVED] * 16, *[DEGRADED] * 30, replace(DEGRADED, priority="critical"))
    assert len(misses) == 1
    assert "critical on the primary" in misses[0]


def test_a_pulse_that_leaves_something_behind_is_a_miss() -> None:
    late = replace(SERVED, due_s=2.9, in_time=False)
    row = BY_NAME["pulses"]
    assert row.misses(OverloadTrial((SERVED, late), row.streams))
    assert row.misses(OverloadTrial((SERVED, replace(late, due_s=1.0)), row.streams)) == []


@pytest.mark.slow
async def test_the_control_run_collapses_without_a_front() -> None:
    row = replace(BY_NAME["control-3x"], streams=(steady(4.0, 4.0),))
    async with running(plan_of(row, tokens=10)) as fleet:
        result = await run_overload(fleet, row.streams, 10, seed=1)
    assert result.goodput < 0.9
    assert len(result.outcomes) == pytest.approx(4 * 4 * CAPACITY_PER_S, rel=0.2)
    assert sum(o.in_time for o in result.outcomes) < 0.5 * len(result.outcomes)
