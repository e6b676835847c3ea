"""The simulator's own accounting, and what the policy does in it."""

import random
import time
from statistics import mean

import pytest

from replicas.autoscaling.policy import ScalingSpec
from replicas.autoscaling.simulator import (
    GracewayScaler,
    Observation,
    OracleScaler,
    Outcome,
    Tier,
    simulate,
)
from replicas.autoscaling.traces import TRACES, Trace, arrivals, trace

TIER = Tier()


class Fixed:
    """Always so many, then from `at` on another number."""

    def __init__(self, replicas: int, *, then: int | None = None, at: float = 0.0) -> None:
        self._replicas, self._then, self._at = replicas, then, at

    def replicas(self, seen: Observation) -> int:
        return self._replicas if self._then is None or seen.now < self._at else self._then


def flat(rate: float, length_s: float = 600.0) -> Trace:
    return Trace("flat", length_s, lambda _: rate, rate)


def run(name: str, seed: int) -> tuple[Outcome, Outcome]:
    chosen = trace(name, seed)
    return simulate(chosen, GracewayScaler(TIER.spec), TIER, seed), simulate(
        chosen, OracleScaler(chosen, TIER), TIER, seed
    )


def test_arrivals_have_the_rate_and_the_service_of_their_trace() -> None:
    for burstiness in (1.0, 4.0):
        chosen = Trace("flat", 20_000, lambda _: 5.0, 10.0, burstiness)
        drawn = list(arrivals(chosen, random.Random(1), 4.0))
        assert len(drawn) == pytest.approx(100_000, rel=0.03)
        assert mean(service for _, service in drawn) == pytest.approx(4.0, rel=0.02)
        assert drawn == sorted(drawn, key=lambda a: a[0])


def test_burstiness_is_the_variance_of_counts() -> None:
    for burstiness in (1.0, 4.0):
        counts = [0] * 20_000
        for at, _ in arrivals(Trace("flat", 20_000, lambda _: 5.0, 5.0, burstiness), random.Random(2), 1.0):
            counts[int(at)] += 1
        variance = mean((c - 5.0) ** 2 for c in counts)
        assert variance / 5.0 == pytest.approx(burstiness, rel=0.1)


def test_plenty_attains_everything_and_costs_its_replicas() -> None:
    result = simulate(flat(2.0), Fixed(8), Tier(spec=ScalingSpec(min=8, max=8)), seed=1)
    assert result.attainment == 1.0
    assert result.replica_hours == pytest.approx(8 * 600 / 3600)
    assert result.reversals == 0


def test_half_the_capacity_attains_about_half() -> None:
    # 4 requests a second × 4 s need 16 slots; there are 8.
    result = simulate(flat(4.0, 2000.0), Fixed(1), Tier(spec=ScalingSpec(min=1, max=1)), seed=1)
    assert result.attainment == pytest.approx(0.5, abs=0.05)


def test_a_replica_serves_only_after_its_cold_start_and_costs_from_the_first_second() -> None:
    tier = Tier(cold_start_s=100.0, cold_start_jitter=0.0, spec=ScalingSpec(min=1, max=1))
    early = simulate(flat(4.0, 300.0), Fixed(1, then=2, at=100.0), tier, seed=1)
    never = simulate(flat(4.0, 300.0), Fixed(1), tier, seed=1)
    until_it_serves = simulate(flat(4.0, 199.0), Fixed(1, then=2, at=100.0), tier, seed=1)
    alone = simulate(flat(4.0, 199.0), Fixed(1), tier, seed=1)
    assert until_it_serves.attained == alone.attained
    assert early.attained > never.attained
    assert (early.replica_hours - never.replica_hours) * 3600 == pytest.approx(200, abs=2)


def test_a_draining_replica_finishes_what_it_has_and_costs_until_then() -> None:
    tier = Tier(service_s=50.0, spec=ScalingSpec(min=2, max=2))
    shrunk = simulate(flat(0.3, 400.0), Fixed(2, then=1, at=200.0), tier, seed=3)
    assert 2 * 200 + 200 < shrunk.replica_hours * 3600 < 2 * 400


def test_reversals_count_changes_of_direction() -> None:
    class UpDownUp:
        def replicas(self, seen: Observation) -> int:
            return [1, 2, 3, 1, 2][min(4, int(seen.now // 100))]

    assert simulate(flat(1.0), UpDownUp(), TIER, seed=1).reversals == 2


def test_a_seed_is_a_run_and_another_is_another() -> None:
    results = [simulate(trace("step", s), GracewayScaler(TIER.spec), TIER, s) for s in (1, 1, 2)]
    assert results[0] == results[1]
    assert results[0].requests != results[2].requests


def test_minutes_of_traffic_take_less_than_a_second_of_cpu() -> None:
    before = time.process_time()
    simulate(trace("step", 1), GracewayScaler(TIER.spec), TIER, 1)
    # 40 minutes of traffic; the bound is ten times what it takes.
    assert time.process_time() - before < 5.0


@pytest.mark.parametrize("seed", range(3))
def test_a_step_is_followed_once_up_and_once_down(seed: int) -> None:
    ours, _ = run("step", seed)
    assert ours.reversals <= 1
    # 5.3 replicas are needed; five seconds of arrivals tell it to within one.
    up_at, up_to = next((at, replicas) for at, replicas in ours.targets if at > 300)
    assert up_at <= 315
    assert 5 <= up_to <= 7
    assert ours.targets[-1][1] == 2


def test_the_day_costs_at_most_15_percent_more_than_knowing_it() -> None:
    ours, oracle = run("diurnal", 0)
    assert ours.replica_hours <= 1.15 * oracle.replica_hours
    assert ours.attainment > 0.99


@pytest.mark.parametrize("name", TRACES)
def test_every_trace_stays_within_its_peak(name: str) -> None:
    for seed in range(3):
        chosen = trace(name, seed)
        rates = [chosen.rate(t) for t in range(int(chosen.length_s))]
        assert 0 < max(rates) <= chosen.peak
        assert min(rates) > 0
