"""Purses of several gateways over one store: a real Redis, killed, frozen, empty, and one in memory."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from random import Random
from typing import Any

import orjson
import pytest

from gateway.purse import OverBudget, Purse
from gateway.request import Request, parse_request
from gateway.specs import BudgetSpec, PriceSpec
from state_store.embedded import EmbeddedRedis
from state_store.memory import MemoryStateStore
from state_store.open import open_state_store
from state_store.protocol import StateStore, StateStoreUnavailable

PRICE = PriceSpec(prompt=0.0, answer=1e6)
"""A token of an answer costs 1."""
DAY = 86_400.0


def nobody_cares(_: Purse) -> None:
    return None


def purse(store: StateStore, amount: float = 100.0, at: float = 1000 * DAY, **more: Any) -> Purse:
    return Purse("chat/far", BudgetSpec(amount=amount, **more), PRICE, store, nobody_cares, lambda: at)


def request(tokens: int | None = 10, **more: Any) -> Request:
    body = {"model": "chat", "prompt": "x", "max_tokens": tokens, **more}
    return parse_request("text", orjson.dumps(body), {})


async def use(purse: Purse, tokens: int, used: int | None = None) -> None:
    hold = await purse.hold(request(tokens))
    hold.settle("success", {"completion_tokens": tokens if used is None else used}, 0)


@pytest.fixture
async def redis() -> AsyncIterator[EmbeddedRedis]:
    server = EmbeddedRedis()
    await server.start()
    try:
        yield server
    finally:
        if server.pid:
            os.kill(server.pid, signal.SIGCONT)
        await server.stop()


Open = Callable[[float], StateStore]


@pytest.fixture
async def open_store(redis: EmbeddedRedis) -> AsyncIterator[Open]:
    """Clients of the Redis, each with its patience in seconds; closed however a test ends."""
    opened: list[StateStore] = []

    def open_one(timeout_s: float = 5.0) -> StateStore:
        opened.append(open_state_store(redis.url, timeout_s=timeout_s))
        return opened[-1]

    yield open_one
    for store in opened:
        with suppress(StateStoreUnavailable):
            await store.close()


async def test_spends_up_to_the_amount_and_no_further() -> None:
    mine = purse(MemoryStateStore())
    for _ in range(10):
        await use(mine, 10)
    assert mine.is_spent
    with pytest.raises(OverBudget):
        await mine.hold(request(1))


async def test_a_request_that_is_too_dear_leaves_the_rest_to_others() -> None:
    mine = purse(MemoryStateStore())
    await use(mine, 60)
    with pytest.raises(OverBudget):
        await mine.hold(request(50))
    assert (mine.is_spent, mine.is_short) == (False, True)
    await use(mine, 20)
    assert not mine.is_short
    with pytest.raises(OverBudget):
        await mine.hold(request(30))
    assert mine.is_short
    await use(mine, 20)
    assert (mine.is_spent, mine.is_short) == (True, False)


@pytest.mark.parametrize(
    ("result", "usage", "came", "cost"),
    [
        ("success", {"completion_tokens": 7}, 0, 7),
        ("success", None, 5, 5),
        ("abandoned", None, 3, 3),
        ("cut", None, 4, 4),
        ("first_token_timeout", None, 0, 0),
        *[(r, None, 0, 0) for r in ("refused", "unreachable", "backpressure", "rejected", "http_500")],
    ],
)
async def test_pays_by_usage_or_by_what_came(
    result: str, usage: dict[str, int] | None, came: int, cost: float
) -> None:
    mine = purse(MemoryStateStore())
    (await mine.hold(request(10))).settle(result, usage, came)
    assert (mine.account.spent, mine.account.held) == (cost, 0.0)


async def test_choices_and_unbounded_answers_hold_more() -> None:
    mine = purse(MemoryStateStore(), amount=1e6)
    assert (await mine.hold(request(10, n=3))).cost == 30.0
    assert (await mine.hold(request(10, best_of=4, n=2))).cost == 40.0
    chat = parse_request("chat", b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}', {})
    assert (await mine.hold(chat)).cost == 1024.0


async def test_the_next_day_has_the_whole_amount_again() -> None:
    now = [1000.5 * DAY]
    told: list[bool] = []
    store = MemoryStateStore()
    mine = Purse(
        "m/t", BudgetSpec(amount=10), PRICE, store, lambda p: told.append(p.is_spent), lambda: now[0]
    )
    await use(mine, 10)
    assert told == [True]
    assert mine.resets_in_s == DAY / 2
    now[0] += DAY
    await mine.sync()
    assert told == [True, False]
    await use(mine, 10)


@pytest.mark.parametrize("count", [2, 5])
async def test_gateways_share_it_through_redis(open_store: Open, count: int) -> None:
    purses = [purse(open_store(5.0)) for _ in range(count)]
    rng = Random(1)

    async def spend(mine: Purse) -> None:
        for _ in range(60):
            try:
                await use(mine, rng.randint(1, 5))
            except OverBudget:
                await asyncio.sleep(0)

    await asyncio.gather(*(spend(p) for p in purses))
    spent = sum(p.account.spent for p in purses)
    assert 90.0 <= spent <= 100.0


async def test_it_survives_a_restart_and_gives_back_what_was_only_claimed(open_store: Open) -> None:
    store = open_store(5.0)
    first = purse(store)
    await use(first, 59)
    await first.close()
    second = purse(store)
    await second.sync()
    assert second.account.left == 41.0
    await use(second, 41)
    with pytest.raises(OverBudget):
        await second.hold(request(1))


async def test_what_a_killed_gateway_claimed_is_spent_and_little(open_store: Open) -> None:
    store = open_store(5.0)
    await use(purse(store), 1)
    second = purse(store)
    await second.sync()
    assert 98.0 <= second.account.left < 100.0


@pytest.mark.parametrize("is_frozen", [True, False], ids=["frozen", "gone"])
async def test_without_the_store_it_spends_little_and_goes_on_when_it_is_back(
    redis: EmbeddedRedis, open_store: Open, is_frozen: bool
) -> None:
    store = open_store(0.5)
    mine = purse(store, without_store=0.1)
    await use(mine, 1)
    if is_frozen:
        os.kill(redis.pid, signal.SIGSTOP)
    else:
        await redis.stop()
    spent = 0
    for _ in range(50):
        try:
            await use(mine, 1)
            spent += 1
        except OverBudget:
            break
    # One of two claimed before, and a tenth of the amount.
    assert spent == 11
    assert not mine.is_spent
    if is_frozen:
        os.kill(redis.pid, signal.SIGCONT)
        async with asyncio.timeout(15.0):
            while True:
                try:
                    await use(mine, 20)
                    break
                except OverBudget:
                    await asyncio.sleep(0.05)
        other = purse(store)
        await other.sync()
        assert other.account.left <= 100.0 - 32.0


async def test_strict_without_the_store() -> None:
    class Gone(MemoryStateStore):
        async def scan(self, group: str) -> dict[str, bytes]:
            raise StateStoreUnavailable("gone")

    with pytest.raises(OverBudget):
        await purse(Gone(), without_store=0.0).hold(request(1))


async def test_a_client_that_leaves_while_money_is_claimed_holds_nothing() -> None:
    class Slow(MemoryStateStore):
        async def scan(self, group: str) -> dict[str, bytes]:
            await asyncio.sleep(0.05)
            return await super().scan(group)

    mine = purse(Slow())
    task = asyncio.create_task(mine.hold(request(10)))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert mine.account.held == 0.0
    await mine.sync()
    for _ in range(10):
        await use(mine, 10)
    assert mine.is_spent
