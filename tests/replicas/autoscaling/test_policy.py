"""The scaling policy as tables: loads in, replicas out."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from replicas.autoscaling.policy import Fleet, Load, ScalingDecision, ScalingSpec, ScalingState, decide

SPEC = ScalingSpec(min=1, max=16, utilization=0.75, up_delay_s=5.0, down_window_s=240.0, stale_s=15.0)
SLOTS, COLD_START_S = 8, 30.0


def demand(slots: float, now: float) -> Load:
    """Traffic that needs this many slots, as rates."""
    return Load(as_of=now, in_flight=int(slots), arrivals_per_s=slots / 4.0, service_s=4.0)


class Tier:
    """Runs the policy second by second; what it asks for runs at once unless `cold` is set."""

    def __init__(self, target: int, spec: ScalingSpec = SPEC, *, cold: bool = False) -> None:
        self.spec, self.cold = spec, cold
        self.target = self.running = target
        self.state = ScalingState()
        self.now = 0.0
        self.decisions: list[ScalingDecision] = []

    def run(self, seconds: int, load: Callable[[float], Load | None]) -> list[int]:
        """The targets of these seconds, without repeats."""
        changes = [self.target]
        for _ in range(seconds):
            self.now += 1.0
            fleet = Fleet(self.target, self.running, SLOTS, COLD_START_S)
            decision = decide(load(self.now), fleet, self.spec, self.state, self.now)
            self.state, self.target = decision.state, decision.replicas
            self.running = self.running if self.cold else self.target
            self.decisions.append(decision)
            if decision.replicas != changes[-1]:
                changes.append(decision.replicas)
        return changes


def steady(slots: float) -> Callable[[float], Load]:
    return lambda now: demand(slots, now)


def test_a_step_of_four_reaches_its_target_in_one_decision_after_the_delay() -> None:
    tier = Tier(2)
    assert tier.run(60, steady(12)) == [2]
    assert tier.run(5, steady(48)) == [2]
    assert tier.run(1, steady(48)) == [2, 8]
    assert tier.run(600, steady(48)) == [8]


@pytest.mark.parametrize(
    ("slots", "replicas"),
    # 8 slots × 0.75 = 6 a replica, and 1 % more before there is another.
    [(0.0, 1), (6.0, 1), (6.05, 1), (6.1, 2), (12.0, 2), (12.2, 3), (90.0, 15), (96.0, 16), (500.0, 16)],
)
def test_enough_for_the_demand_within_the_bounds(slots: float, replicas: int) -> None:
    tier = Tier(1)
    tier.run(120, steady(slots))
    assert tier.target == replicas


def test_noise_around_a_full_house_adds_nothing() -> None:
    tier = Tier(2)
    assert tier.run(600, lambda now: demand(12 + (2.0 if now % 2 else -2.0), now)) == [2]


def test_turning_round_takes_more_than_going_on() -> None:
    tier = Tier(3)
    tier.run(600, steady(11.4))
    assert tier.target == 2
    assert tier.run(300, steady(12.8)) == [2]
    assert tier.run(300, steady(13.2)) == [2, 3]
    assert tier.run(300, steady(18.3)) == [3, 4]


def test_a_replica_stays_while_the_others_would_be_full() -> None:
    tier = Tier(3)
    assert tier.run(600, steady(11.9)) == [3]
    assert tier.run(600, steady(11.4)) == [3, 2]
    assert tier.run(600, steady(11.9)) == [2]


def test_down_is_slow_and_by_shares() -> None:
    tier = Tier(8)
    tier.run(300, steady(48))
    assert tier.run(239, steady(5.7)) == [8]
    went = tier.run(120, steady(5.7))
    assert went == sorted(went, reverse=True)
    assert went[1] >= 4
    assert went[-1] == 1


def test_a_lull_shorter_than_the_window_takes_nothing_away() -> None:
    tier = Tier(8)
    tier.run(300, steady(48))
    for _ in range(5):
        assert tier.run(200, steady(6)) == [8]
        assert tier.run(60, steady(48)) == [8]


@pytest.mark.parametrize(
    "load", [lambda _: None, lambda now: demand(48, now - 16), lambda now: demand(0, now - 1000)]
)
def test_missing_or_stale_data_changes_nothing(load: Callable[[float], Load | None]) -> None:
    tier = Tier(4)
    tier.run(300, steady(24))
    assert tier.run(600, load) == [4]
    assert "hold" in tier.decisions[-1].reason


def test_data_just_within_its_age_counts() -> None:
    tier = Tier(1)
    assert tier.run(10, lambda now: demand(48, now - 14))[-1] == 8


def test_what_was_needed_before_the_first_data_is_not_guessed() -> None:
    tier = Tier(8)
    assert tier.run(239, steady(6)) == [8]


def test_no_way_down_within_a_cold_start_of_the_way_up() -> None:
    tier = Tier(1, replace(SPEC, down_window_s=10.0))
    tier.run(60, steady(6))
    tier.run(8, steady(48))
    assert tier.target == 8
    went_up_at = tier.now
    tier.run(25, steady(6))
    assert tier.target == 8
    tier.run(60, steady(6))
    assert tier.target < 8
    assert tier.now - went_up_at > COLD_START_S


def test_no_way_up_within_a_cold_start_of_the_way_down_but_in_panic() -> None:
    spec = replace(SPEC, down_share=1.0, window_s=10.0)
    tier = Tier(4, spec)
    tier.run(300, steady(24))
    for _ in range(300):
        if tier.target == 4:
            tier.run(1, steady(12))
    assert tier.target == 3
    calm, panicked = tier, Tier(3, spec)
    panicked.state, panicked.now = tier.state, tier.now
    assert calm.run(25, steady(22)) == [3]
    assert calm.run(15, steady(22)) == [3, 4]
    assert panicked.run(25, steady(48))[-1] == 8


def test_panic_does_not_wait_for_the_long_window() -> None:
    calm, panicked = Tier(4), Tier(4)
    calm.run(60, steady(24))
    panicked.run(60, steady(24))
    assert calm.run(8, steady(30)) == [4]
    assert panicked.run(8, steady(48)) == [4, 8]


def test_a_wait_that_breaks_the_slo_adds_a_replica_whatever_the_rates_say() -> None:
    tier = Tier(2)
    slow = lambda now: replace(demand(6, now), queued=9, predicted_wait_s=3.0)  # noqa: E731
    tier.run(30, steady(6))
    assert tier.run(6, slow) == [2, 3]


def test_while_replicas_start_a_long_wait_asks_for_no_more() -> None:
    tier = Tier(2, cold=True)
    tier.run(60, steady(12))
    slow = lambda now: replace(demand(48, now), queued=40, predicted_wait_s=20.0)  # noqa: E731
    assert tier.run(30, slow) == [2, 8]


def test_without_rates_what_is_under_way_is_the_demand() -> None:
    tier = Tier(1)
    assert tier.run(60, lambda now: Load(now, in_flight=8, queued=16))[-1] == 4


def test_a_cache_that_fills_before_the_slots_is_the_demand() -> None:
    tier = Tier(2)
    assert tier.run(30, lambda now: replace(demand(6, now), kv_use=0.5)) == [2]
    assert tier.run(120, lambda now: replace(demand(6, now), kv_use=1.0))[1] == 3


def test_to_zero_after_long_and_back_at_once() -> None:
    tier = Tier(1, replace(SPEC, min=0, to_zero_after_s=400.0))
    tier.run(10, steady(4))
    idle = lambda now: Load(now, in_flight=0, arrivals_per_s=0.0, service_s=4.0)  # noqa: E731
    assert tier.run(399, idle) == [1]
    assert tier.run(60, idle) == [1, 0]
    assert tier.run(1, lambda now: Load(now, in_flight=0, queued=1, arrivals_per_s=1.0, service_s=4.0)) == [
        0,
        1,
    ]


def test_a_tier_that_may_not_go_to_zero_stays() -> None:
    tier = Tier(1)
    assert tier.run(3600, lambda now: Load(now, in_flight=0, arrivals_per_s=0.0, service_s=4.0)) == [1]


def test_standbys_come_on_top_and_are_out_of_rotation() -> None:
    tier = Tier(3, replace(SPEC, standbys=1))
    tier.run(300, steady(12))
    assert (tier.decisions[-1].replicas, tier.decisions[-1].in_rotation) == (3, 2)
    tier.run(10, steady(48))
    assert (tier.decisions[-1].replicas, tier.decisions[-1].in_rotation) == (9, 8)


def reversals(targets: Iterable[int]) -> int:
    steps = list(targets)
    ups = [after > before for before, after in pairwise(steps)]
    return sum(one != other for one, other in pairwise(ups))


def test_one_step_up_and_back_is_one_reversal() -> None:
    tier = Tier(2)
    targets = [*tier.run(300, steady(11.5)), *tier.run(600, steady(48)), *tier.run(900, steady(11.5))]
    changes = [t for before, t in zip([None, *targets], targets, strict=False) if t != before]
    assert changes[0] == changes[-1] == 2
    assert max(changes) == 8
    assert reversals(changes) == 1


def test_every_decision_has_a_reason() -> None:
    tier = Tier(2)
    tier.run(100, steady(12))
    tier.run(100, steady(48))
    tier.run(600, steady(6))
    assert all(decision.reason for decision in tier.decisions)
