"""What becomes of requests when more come than can be served: the whole of admission on virtual time.

The capacity is 16 requests/s, an answer takes a second, and its first token must come within one.
"""

from dataclasses import replace
from random import Random

import pytest

from gateway.policy.facts import Priority
from tests.gateway.overload import Asked, Got, Rig, poisson

MIX: dict[Priority, float] = {"critical": 0.2, "standard": 0.8}
FEW: dict[Priority, float] = {"critical": 0.05, "standard": 0.95}
CAPACITY_PER_S, DURATION_S = 16.0, 20.0


def alike(rng: Random) -> float:
    return 0.99 + 0.02 * rng.random()


def mixed(rng: Random) -> float:
    return 0.2 + 1.6 * rng.random()


def quarter(rng: Random) -> float:
    return 0.25


SOLO = Rig((("primary", 2, 8, alike),))
TWO = Rig((("primary", 2, 8, alike), ("small", 1, 64, quarter)))


def share(got: list[Got], *priorities: Priority) -> float:
    asked = [g for g in got if not priorities or g.asked.priority in priorities]
    return sum(g.in_time for g in asked) / len(asked)


def goodput(got: list[Got]) -> float:
    return sum(g.in_time for g in got) / (CAPACITY_PER_S * DURATION_S)


def late_refusals(got: list[Got]) -> float:
    refused = [g for g in got if g.shed]
    return sum(g.began_s > 0.005 for g in refused) / len(refused)


@pytest.mark.parametrize("seed", [1, 2, 3])
class TestWithoutASmallTier:
    @pytest.mark.parametrize(("k", "mix", "least"), [(3.0, MIX, 0.97), (10.0, FEW, 0.9)])
    def test_full_use_and_every_critical_request(
        self, k: float, mix: dict[Priority, float], least: float, seed: int
    ) -> None:
        got = SOLO.serve(poisson(k * CAPACITY_PER_S, DURATION_S, mix, seed))
        assert goodput(got) >= least
        assert share(got, "critical") == 1.0
        assert late_refusals(got) <= 0.01
        assert not [g for g in got if not g.shed and not g.in_time], "nothing is answered late"

    def test_refusals_say_why_and_for_how_long(self, seed: int) -> None:
        got = SOLO.serve(poisson(3 * CAPACITY_PER_S, 5.0, MIX, seed))
        sheds = [g.shed for g in got if g.shed]
        assert {s.reason for s in sheds} <= {"queue_full", "priority"}
        assert all(s.retry_after_s is not None and 0.0 < s.retry_after_s < 5.0 for s in sheds)

    def test_answers_of_any_length(self, seed: int) -> None:
        got = Rig((("primary", 2, 8, mixed),)).serve(poisson(3 * CAPACITY_PER_S, DURATION_S, MIX, seed))
        assert goodput(got) >= 0.95
        assert share(got, "critical") == 1.0

    def test_below_capacity_hardly_anything_is_refused(self, seed: int) -> None:
        assert share(SOLO.serve(poisson(0.9 * CAPACITY_PER_S, DURATION_S, MIX, seed))) >= 0.97
        assert share(SOLO.serve(poisson(0.7 * CAPACITY_PER_S, DURATION_S, MIX, seed))) >= 0.995


@pytest.mark.parametrize("seed", [1, 2, 3])
class TestWithASmallTier:
    def test_three_times(self, seed: int) -> None:
        got = TWO.serve(poisson(3 * CAPACITY_PER_S, DURATION_S, MIX, seed))
        assert share(got) == 1.0
        assert sum(g.tier == "primary" for g in got) / (CAPACITY_PER_S * DURATION_S) >= 0.95
        critical = [g for g in got if g.asked.priority == "critical"]
        assert all(g.tier == "primary" for g in critical)

    def test_ten_times(self, seed: int) -> None:
        got = TWO.serve(poisson(10 * CAPACITY_PER_S, DURATION_S, MIX, seed))
        assert share(got) >= 0.97
        assert share(got, "critical") == 1.0

    def test_a_spike_of_sheddable_requests(self, seed: int) -> None:
        calm = poisson(0.5 * CAPACITY_PER_S, 25.0, MIX, seed)
        spike = [Asked(5.0 + a.at_s, "sheddable") for a in poisson(12 * CAPACITY_PER_S, 10.0, FEW, seed + 9)]
        got = TWO.serve(calm + spike)
        assert share(got, "critical") == 1.0
        assert share(got, "sheddable") >= 0.97
        assert all(g.tier == "primary" for g in got if g.asked.at_s > 17.0), "back on the top tier"
        assert all(g.tier == "primary" for g in got if g.asked.priority == "critical")

    def test_who_accepts_no_lower_tier_gets_none(self, seed: int) -> None:
        got = TWO.serve(poisson(3 * CAPACITY_PER_S, DURATION_S, MIX, seed, lowest=0))
        assert {g.tier for g in got} == {"primary", ""}
        assert goodput(got) >= 0.97


def test_it_recovers_from_every_pulse() -> None:
    asked: list[Asked] = []
    for pulse in range(100):
        burst = poisson(10 * CAPACITY_PER_S, 0.5, FEW, pulse)
        asked += [Asked(3.0 * pulse + a.at_s, a.priority) for a in burst]
        asked.append(Asked(3.0 * pulse + 2.6))
    got = SOLO.serve(asked)
    assert share(got, "critical") >= 0.999
    assert all(g.in_time and g.began_s == 0.0 for g in got if g.asked.at_s % 3.0 > 2.5)


TENANTS_S = 12.0
VARIED = Rig((("primary", 2, 8, mixed),))


def of_tenant(tenant: str, per_s: float, seed: int, weight: float = 1.0) -> list[Asked]:
    asked = poisson(per_s, TENANTS_S, {"standard": 1.0}, seed)
    return [replace(a, tenant=tenant, weight=weight) for a in asked]


def share_of(got: list[Got], tenant: str) -> float:
    """Of the capacity."""
    return sum(g.in_time for g in got if g.asked.tenant == tenant) / (CAPACITY_PER_S * TENANTS_S)


class TestTenants:
    def test_a_flood_leaves_another_its_share(self) -> None:
        flood, small = of_tenant("flood", 10 * 6.0, 1), of_tenant("small", 6.0, 2)
        got = VARIED.serve(flood + small)
        of_small = [g for g in got if g.asked.tenant == "small"]
        # It wants less than half of the capacity, and has nearly all of that: chance is allowed for.
        assert sum(g.in_time for g in of_small) / len(of_small) >= 0.8
        assert share_of(got, "flood") >= 0.55
        # Before the first answers are whole, nobody can know how long they take.
        assert late_refusals([g for g in got if g.asked.at_s > 2.0]) <= 0.01

    def test_the_same_without_names_drowns(self) -> None:
        flood, small = of_tenant("flood", 10 * 6.0, 1), of_tenant("small", 6.0, 2)
        got = VARIED.serve([replace(a, tenant="") for a in flood] + [replace(a, tenant="") for a in small])
        times = {a.at_s for a in small}
        of_small = [g for g in got if g.asked.at_s in times]
        assert sum(g.in_time for g in of_small) / len(of_small) <= 0.5

    def test_two_floods_share_by_weight(self) -> None:
        got = VARIED.serve(of_tenant("a", 40.0, 1) + of_tenant("b", 80.0, 2, weight=3.0))
        assert share_of(got, "b") / share_of(got, "a") == pytest.approx(3.0, rel=0.2)

    def test_nothing_is_kept_for_one_who_does_not_come(self) -> None:
        got = VARIED.serve(of_tenant("alone", 48.0, 1))
        assert share_of(got, "alone") >= 0.93
