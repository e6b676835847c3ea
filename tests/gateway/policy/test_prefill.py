"""What a prompt's length costs, from synthetic first tokens."""

from random import Random

import pytest

from gateway.policy.admission import is_hopeless, queue_place
from gateway.policy.decision import Skip, Wait
from gateway.policy.forecast import Forecast
from gateway.policy.prefill import PrefillSpeed
from gateway.policy.snapshot import Routable, TierView
from tests.gateway.policy.fleets import R, facts

NOW = 100.0
EVEN = Forecast([99.0 + n / 16 for n in range(1, 17)], 1.0)


def learnt(
    per_byte_s: float = 1e-5, base_s: float = 0.02, longest: int = 40_000, count: int = 50
) -> PrefillSpeed:
    speed, rng = PrefillSpeed(), Random(1)
    for _ in range(count):
        size = rng.randrange(200, longest)
        speed.add(size, base_s + per_byte_s * size, NOW)
    return speed


@pytest.mark.parametrize(("size", "expected"), [(0, 0.02), (1_000, 0.03), (30_000, 0.32), (100_000, 1.02)])
def test_a_line_through_what_was_measured(size: int, expected: float) -> None:
    speed = learnt()
    assert speed.expected_s(size, NOW) == pytest.approx(expected, rel=0.02)
    assert speed.allowance_s == pytest.approx(0.0, abs=0.02)


def test_it_follows_a_replica_that_becomes_slower() -> None:
    speed, rng = learnt(), Random(2)
    for _ in range(200):
        size = rng.randrange(200, 40_000)
        speed.add(size, 0.02 + 3e-5 * size, NOW)
    assert speed.expected_s(30_000, NOW) == pytest.approx(0.92, rel=0.1)


def test_alike_prompts_say_nothing_about_long_ones() -> None:
    speed, rng = PrefillSpeed(), Random(3)
    for _ in range(100):
        speed.add(300 + rng.randrange(20), 0.05 + 0.02 * rng.random(), NOW)
    expected_s = speed.expected_s(100_000, NOW)
    assert expected_s is not None
    assert expected_s < 0.5


@pytest.mark.parametrize(("count", "now"), [(0, NOW), (4, NOW), (50, NOW + 11.0)])
def test_too_little_or_too_old_is_not_known(count: int, now: float) -> None:
    assert learnt(count=count).expected_s(1_000, now) is None


def tier(prefill: PrefillSpeed | None, ttft_s: float = 0.0) -> TierView:
    return TierView("best", True, Routable([R("r", 8)]), 1.0, (0, 0, 0), EVEN, ttft_s=ttft_s, prefill=prefill)


@pytest.mark.parametrize(
    ("size", "has_tier_below", "until"),
    [
        # 1.5 times the prefill is left for it: a short prompt may wait longer than a long one
        (500, False, 100.88),
        (30_000, False, 100.52),
        (60_000, False, 100.25),
        (500, True, 100.75),
        (30_000, True, 100.52),
        (90_000, False, 100.08),
        # no place would be early enough, so the SLO is not about it
        (120_000, False, 100.25),
    ],
)
def test_how_long_it_may_wait(size: int, has_tier_below: bool, until: float) -> None:
    place = queue_place(tier(learnt(), 0.3), facts(fresh_size_bytes=size), has_tier_below, NOW)
    assert isinstance(place, Wait)
    assert place.until == pytest.approx(until, abs=0.03)


def test_before_lengths_are_known_all_prompts_are_taken_alike() -> None:
    place = queue_place(tier(PrefillSpeed(), 0.3), facts(fresh_size_bytes=30_000), False, NOW)
    assert isinstance(place, Wait)
    assert place.until == pytest.approx(100.55)


def test_the_callers_deadline_has_the_prefill_in_it() -> None:
    view = tier(learnt())
    asked = facts(fresh_size_bytes=30_000, deadline=NOW + 0.3)
    assert queue_place(view, asked, False, NOW) == Skip("deadline", pytest.approx(0.1))
    assert is_hopeless(view, asked, NOW)
    assert not is_hopeless(view, facts(fresh_size_bytes=20_000, deadline=NOW + 0.3), NOW)
    assert not is_hopeless(tier(PrefillSpeed()), asked, NOW), "what is not known is tried"
