"""Breakers told between gateways: on a store that both share, with both clocks in the test's hand."""

from random import Random

import pytest

from gateway.breakers import Breaker, Outcome
from gateway.gossip import BreakerGossip
from gateway.specs import BreakerSpec
from state_store.memory import MemoryStateStore

SPEC = BreakerSpec(window_s=10.0, min_count=3, failure_share=0.5, probes=1, backoff_s=4.0, backoff_max_s=4.0)


class Gateway:
    def __init__(self, store: MemoryStateStore) -> None:
        self.breaker = Breaker("chat/primary/r1", SPEC, Random(1))
        self.gossip = BreakerGossip(store, lambda: [self.breaker])

    def call(self, outcome: Outcome, now: float) -> None:
        self.breaker.leave(self.breaker.enter(now), outcome, now)

    async def talk(self, now: float, clock_ahead_s: float = 0.0) -> None:
        await self.gossip.exchange(now, wall=now + 1000.0 + clock_ahead_s)


@pytest.fixture
def pair() -> tuple[Gateway, Gateway]:
    store = MemoryStateStore()
    return Gateway(store), Gateway(store)


async def test_what_one_has_learnt_the_other_need_not_pay_for(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    for _ in range(3):
        one.call(Outcome.FAILURE, now=1.0)
    await one.talk(now=1.1)
    await other.talk(now=1.2)
    assert other.breaker.state == "open"
    assert other.breaker.reopen_at == pytest.approx(one.breaker.reopen_at)


async def test_a_gateways_own_experience_stands_against_gossip(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    for _ in range(3):
        one.call(Outcome.FAILURE, now=1.0)
        other.call(Outcome.SUCCESS, now=1.0)
    await one.talk(now=1.1)
    await other.talk(now=1.2)
    assert other.breaker.state == "closed"


async def test_one_gateway_probes_for_all(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    for _ in range(3):
        one.call(Outcome.FAILURE, now=1.0)
    await one.talk(now=1.1)
    await other.talk(now=1.2)
    due = max(one.breaker.reopen_at, other.breaker.reopen_at) - 0.1
    await one.talk(now=due)
    await other.talk(now=due)
    assert one.breaker.admits(due + 0.2)
    assert not other.breaker.admits(due + 0.2)


async def test_a_breaker_that_closed_is_tried_by_the_others_at_once(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    for _ in range(3):
        one.call(Outcome.FAILURE, now=1.0)
    await one.talk(now=1.1)
    await other.talk(now=1.2)
    other.breaker.defer(60.0)
    back = one.breaker.reopen_at
    one.call(Outcome.SUCCESS, now=back)
    assert one.breaker.state == "closed"
    await one.talk(now=back + 0.1)
    await other.talk(now=back + 0.2)
    assert other.breaker.admits(back + 0.2)


async def test_an_open_breaker_that_was_only_heard_of_is_not_told_on(pair: tuple[Gateway, Gateway]) -> None:
    one, other = pair
    for _ in range(3):
        one.call(Outcome.FAILURE, now=1.0)
    await one.talk(now=1.1)
    await other.talk(now=1.2)
    assert other.breaker.state == "open"
    back = one.breaker.reopen_at
    one.call(Outcome.SUCCESS, now=back)
    await one.talk(now=back + 0.1)
    await other.talk(now=back + 0.2)
    await one.talk(now=back + 0.3)
    assert one.breaker.state == "closed"


async def test_a_clock_that_is_ahead_closes_nothing_for_longer_than_was_meant(
    pair: tuple[Gateway, Gateway],
) -> None:
    one, other = pair
    for _ in range(3):
        one.call(Outcome.FAILURE, now=1.0)
        other.call(Outcome.FAILURE, now=1.0)
    meant_s = one.breaker.reopen_at - 1.1
    await one.talk(now=1.1, clock_ahead_s=3600.0)
    await other.talk(now=1.2)
    assert other.breaker.state == "open"
    assert other.breaker.reopen_at <= 1.2 + meant_s + 2.0
