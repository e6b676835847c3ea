"""A live tier: what its view says of replicas that take no requests."""

from math import inf
from random import Random

import pytest

from gateway.fleet import AFTERWARDS_S, Fleet
from gateway.policy.health import Health
from gateway.specs import BreakerSpec, Endpoint, Slo, TierSpec

SPEC = TierSpec(
    name="best", backend="openai", served_model="m", slots=8, slo=Slo(ttft_s=1.0),
    replicas=(Endpoint(url="http://127.0.0.1:1"), Endpoint(url="http://127.0.0.1:2")),
)  # fmt: skip
DOWN = Health("down", "refused", 100.0)


@pytest.mark.parametrize(
    ("one", "other", "now", "expected"),
    [
        (Health("starting", "registered", 100.0), DOWN, 900.0, (8, inf)),
        (Health("suspect", "hung", 100.0), DOWN, 101.0, (8, 110.0)),
        (Health("suspect", "hung", 100.0), Health("suspect", "hung", 104.0), 101.0, (16, 114.0)),
        (Health("suspect", "hung", 100.0), Health("suspect", "hung", 104.0), 111.0, (8, 114.0)),
        # its probes neither pass nor fail: it says that it is busy, and says so still
        (Health("suspect", "hung", 100.0), DOWN, 110.0, (0, 110.0)),
    ],
)
def test_until_when_a_replica_that_takes_no_requests_is_waited_for(
    one: Health, other: Health, now: float, expected: tuple[int, float]
) -> None:
    tier = Fleet("chat", [SPEC], BreakerSpec(), Random(0), "").tiers["best"]
    for replica, health in zip(tier.replicas.values(), (one, other), strict=True):
        replica.become(health)
    view = tier.view(now)
    assert (view.starting, view.starting_until) == expected


def spec(name: str) -> TierSpec:
    return TierSpec(name=name, backend="canned", text="T")


def test_tiers_that_reloads_took_out_are_forgotten_once_no_request_can_be_theirs() -> None:
    fleet = Fleet("chat", [spec("t0")], BreakerSpec(), Random(0), "")
    fleet.longest_request_s = 600.0
    for n in range(1, 200):
        now = 100.0 * n
        fleet.apply([spec(f"t{n}")], BreakerSpec(), "")
        fleet.forget(now)
        # Who was decided just before still finds the tier.
        assert fleet.tier(f"t{n - 1}").name == f"t{n - 1}"
        assert fleet.remembered <= 10
    fleet.forget(now + 600.0)
    assert fleet.remembered > 0
    fleet.forget(now + 600.0 + AFTERWARDS_S)
    assert fleet.remembered == 0


def test_a_tier_that_comes_back_is_the_one_that_serves() -> None:
    fleet = Fleet("chat", [spec("a"), spec("b")], BreakerSpec(), Random(0), "")
    for names in (("a",), ("a", "b")):
        fleet.apply([spec(name) for name in names], BreakerSpec(), "")
        fleet.forget(0.0)
    assert fleet.remembered == 0
    assert fleet.tier("b") is fleet.tiers["b"]
    fleet.apply([spec("a")], BreakerSpec(), "")
    fleet.forget(AFTERWARDS_S)
    assert fleet.remembered == 1
