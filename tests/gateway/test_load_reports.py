"""What a gateway tells the scaler: of tiers whose replicas are started for it, with replicas or without."""

import asyncio
from random import Random

from gateway.fleet import Fleet
from gateway.load_reports import LoadReports, load_of
from gateway.policy.facts import Facts
from gateway.sessions import Sessions
from gateway.specs import BreakerSpec, TierSpec
from replicas.autoscaling.load import load_in
from state_store.memory import MemoryStateStore
from tests.rig import eventually

TIERS = [TierSpec(name="primary", backend="vllm", wakes=True), TierSpec(name="canned", backend="canned")]


async def test_a_tier_without_replicas_is_reported_with_what_asks_for_it() -> None:
    store, loop = MemoryStateStore(), asyncio.get_running_loop()
    fleet = Fleet("chat", TIERS, BreakerSpec(), Random(1), "")
    for _ in range(30):
        facts = Facts(model="chat", arrived_at=loop.time(), deadline=loop.time() + 60, lowest_tier=1)
        fleet.arrived(facts, "canned", loop.time())
    reports = LoadReports("here", store, lambda: [(fleet, Sessions("chat", store))])
    reports.start()
    await eventually(lambda: load_in(store, "chat", "primary"))
    await reports.stop()
    load = await load_in(store, "chat", "primary")
    assert load is not None
    assert load.arrivals_per_s
    assert (load.in_flight, load.queued, load.service_s) == (0, 0, None)
    assert await load_in(store, "chat", "canned") is None


async def test_of_those_that_asked_long_ago_nobody_is_left() -> None:
    loop = asyncio.get_running_loop()
    fleet = Fleet("chat", TIERS, BreakerSpec(), Random(1), "")
    now = loop.time()
    facts = Facts(model="chat", arrived_at=now, deadline=now + 60, lowest_tier=1)
    fleet.arrived(facts, "canned", now)
    primary = fleet.tiers["primary"]
    assert load_of("here", "chat", primary, now + 1.0, 0.0).arrivals_per_s > 0.0
    assert load_of("here", "chat", primary, now + 60.0, 0.0).arrivals_per_s == 0.0
