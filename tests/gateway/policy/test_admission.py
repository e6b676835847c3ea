"""Who may take a slot, and who may wait for one."""

from dataclasses import replace

import pytest

from gateway.policy.admission import may_take, queue_place
from gateway.policy.decision import Skip, Wait
from gateway.policy.facts import Priority
from gateway.policy.forecast import Forecast
from gateway.policy.snapshot import Routable, TierView
from tests.gateway.policy.fleets import R, facts

NOW = 100.0
FRESH = Forecast([99.95] * 14, 1.0)
"""Fourteen of sixteen slots, all taken just now."""
EVEN = Forecast([99.0 + n / 16 for n in range(1, 17)], 1.0)
"""Sixteen slots, one of which comes free every sixteenth of a second."""
UNKNOWN = Forecast([99.9] * 16)


def tier(
    forecast: Forecast,
    in_flight: int = 8,
    outranking: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ahead: tuple[int, int, int] = (0, 0, 0),
    slots: int | None = 8,
    replicas: int = 2,
) -> TierView:
    routable = Routable(R(f"r{n}", in_flight, slots) for n in range(replicas))
    return TierView("best", True, routable, 1.0, ahead, forecast, outranking)


@pytest.mark.parametrize(
    ("view", "rank", "expected"),
    [
        # nothing outranks it, or is expected to
        (tier(FRESH, 7), 0, True),
        (tier(FRESH, 7), 1, True),
        (tier(FRESH, 7, (0.0, 9.0, 9.0)), 0, True),
        # two slots, and five critical requests that can't wait for the next to come free
        (tier(FRESH, 7, (0.0, 9.0, 9.0)), 1, False),
        (tier(FRESH, 7, (0.0, 0.0, 9.0)), 2, False),
        (tier(FRESH, 7, (0.0, 0.0, 9.0)), 1, True),
        # slots enough for all
        (tier(FRESH, 3, (0.0, 9.0, 9.0)), 1, True),
        # slots come free all the time
        (tier(EVEN, 7, (0.0, 9.0, 9.0)), 1, True),
        (tier(FRESH, 7, (0.0, 9.0, 9.0), replicas=40), 1, True),
        # nobody knows how many there are
        (tier(FRESH, 7, (0.0, 9.0, 9.0), slots=None), 1, True),
    ],
)
def test_may_take(view: TierView, rank: int, expected: bool) -> None:
    assert may_take(view, rank, NOW) is expected


@pytest.mark.parametrize(
    ("view", "changes", "has_tier_below", "until"),
    [
        (tier(EVEN), {}, False, 100.88),
        # where a tier below could serve it, it leaves in time for that
        (tier(EVEN), {}, True, 100.75),
        (tier(EVEN), {"deadline": 100.4}, False, 100.4),
        (tier(EVEN, ahead=(0, 8, 8)), {}, False, 100.88),
        # a critical request looks at critical ones alone, and as long as nobody knows the speed it may try
        (tier(EVEN, ahead=(2, 90, 90)), {"priority": "critical"}, False, 100.95),
        (tier(UNKNOWN), {"priority": "critical"}, False, 100.95),
        # slow to begin: it leaves earlier
        (TierView("best", True, Routable([R("r", 8)]), 1.0, (0, 0, 0), EVEN, ttft_s=0.2), {}, False, 100.7),
    ],
)
def test_a_place(view: TierView, changes: dict[str, object], has_tier_below: bool, until: float) -> None:
    place = queue_place(view, facts(**changes), has_tier_below, NOW)
    assert isinstance(place, Wait)
    assert place.until == pytest.approx(until)


@pytest.mark.parametrize(
    ("view", "changes", "has_tier_below", "expected"),
    [
        (tier(EVEN, ahead=(0, 14, 14)), {}, False, Skip("queue_full", 15 / 16)),
        (tier(EVEN, ahead=(0, 10, 10)), {}, True, Skip("queue_full", 11 / 16)),
        # sheddable goes down first
        (tier(EVEN, ahead=(0, 0, 6)), {"priority": "sheddable"}, True, Skip("queue_full", 7 / 16)),
        # there would be time, but those that outrank it take it
        (tier(EVEN, outranking=(0.0, 12.0, 12.0)), {}, False, Skip("priority", 0.1)),
        (tier(EVEN, ahead=(0, 6, 6)), {"deadline": 100.3}, False, Skip("deadline", 7 / 16)),
        (tier(UNKNOWN), {}, False, Skip("queue_full", 0.9)),
        # waited long enough
        (tier(EVEN), {"arrived_at": 99.1}, False, Skip("queue_full", 0.1)),
    ],
)
def test_no_place(view: TierView, changes: dict[str, object], has_tier_below: bool, expected: Skip) -> None:
    place = queue_place(view, facts(**changes), has_tier_below, NOW)
    assert isinstance(place, Skip)
    assert (place.reason, place.retry_after_s) == (expected.reason, pytest.approx(expected.retry_after_s))


@pytest.mark.parametrize(("priority", "waits"), [("standard", False), ("sheddable", True)])
@pytest.mark.parametrize("has_tier_below", [True, False])
def test_who_is_promised_less_waits_longer(priority: Priority, waits: bool, has_tier_below: bool) -> None:
    """Forty wait already, so that a slot is to be had in two and a half seconds."""
    view = replace(tier(EVEN, ahead=(0, 0, 40)), sheddable_slo_s=20.0, queued_ahead=(0, 40, 40))
    asked = facts(priority=priority, arrived_at=NOW, deadline=NOW + 60.0)
    place = queue_place(view, asked, has_tier_below, NOW)
    assert isinstance(place, Wait if waits else Skip)
    if isinstance(place, Wait):
        assert NOW + 10.0 < place.until <= NOW + 20.0
