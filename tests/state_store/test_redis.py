"""What only a remote store can do: freeze, die, come back; and what that may cost."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio import Redis

from state_store import redis_servers
from state_store.embedded import EmbeddedRedis
from state_store.guarded import GuardedStateStore, StoreBreaker
from state_store.open import open_state_store
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.redis import RedisStateStore

TIMEOUT_S = 0.05
# A timer can be late by as much as another process on this machine keeps the core.
LATE_S = 0.2


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRedis]:
    redis = EmbeddedRedis()
    await redis.start()
    yield redis
    if redis.pid:
        os.kill(redis.pid, signal.SIGCONT)
    await redis.stop()


async def fails_after(call: Awaitable[object]) -> float:
    """Seconds until the call raised StateStoreUnavailable."""
    begun = time.monotonic()
    with pytest.raises(StateStoreUnavailable):
        await call
    return time.monotonic() - begun


async def until(condition: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(0.01)


async def answers(store: StateStore) -> bool:
    try:
        await store.put("g", "probe", b"1", ttl_s=60)
        return await store.get("g", "probe") == b"1"
    except StateStoreUnavailable:
        return False


@pytest.mark.parametrize("is_connected", [True, False])
async def test_a_frozen_server_costs_one_timeout_and_nothing_stays_mixed_up(
    server: EmbeddedRedis, is_connected: bool
) -> None:
    store = RedisStateStore(server.url, timeout_s=TIMEOUT_S)
    await until(lambda: answers(store))
    await store.put("g", "a", b"A", ttl_s=60)
    await store.put("g", "b", b"B", ttl_s=60)
    if not is_connected:
        await store.close()
        store = RedisStateStore(server.url, timeout_s=TIMEOUT_S)
    os.kill(server.pid, signal.SIGSTOP)
    for verb in (
        lambda: store.get("g", "a"),
        lambda: store.put("g", "c", b"C", ttl_s=60),
        lambda: store.scan("g"),
        lambda: store.delete("g", "x"),
    ):
        assert TIMEOUT_S * 0.9 <= await fails_after(verb()) < TIMEOUT_S + LATE_S
    took = await asyncio.gather(*(fails_after(store.get("g", "a")) for _ in range(100)))
    assert max(took) < TIMEOUT_S + LATE_S
    os.kill(server.pid, signal.SIGCONT)
    await until(lambda: answers(store))
    # An answer to a call that was given up must not be taken for another's.
    for _ in range(20):
        assert await asyncio.gather(store.get("g", "a"), store.get("g", "b")) == [b"A", b"B"]
    await store.close()


async def test_a_call_cancelled_by_its_caller_leaves_the_connections_right(
    server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_servers, "MAX_CONNECTIONS", 1)
    store = RedisStateStore(server.url, timeout_s=5.0)
    await store.put("g", "a", b"A", ttl_s=60)
    await store.put("g", "b", b"B", ttl_s=60)
    for i in range(60):
        # One command, and several at once.
        verb = store.get("g", "a") if i % 2 else store.put("g", "c", b"C", ttl_s=60)
        call = asyncio.create_task(verb)
        for _ in range(i % 9):
            await asyncio.sleep(0)
        call.cancel()
        assert await store.get("g", "b") == b"B"
        await asyncio.gather(call, return_exceptions=True)
    await store.close()


async def test_a_killed_server_is_restarted_at_the_same_address(server: EmbeddedRedis) -> None:
    store = open_state_store(server.url)
    await until(lambda: answers(store))
    url, pid = server.url, server.pid
    os.kill(pid, signal.SIGKILL)
    await until(lambda: answers(store))
    assert server.url == url
    assert server.pid != pid
    assert server.restarts >= 1
    await store.close()


async def test_a_server_that_is_not_there_refuses_at_once() -> None:
    store = RedisStateStore("unix:///nowhere/redis.sock", timeout_s=TIMEOUT_S)
    assert await fails_after(store.get("g", "a")) < TIMEOUT_S + LATE_S
    tcp = RedisStateStore("redis://127.0.0.1:1/0", timeout_s=TIMEOUT_S)
    assert await fails_after(tcp.scan("g")) < TIMEOUT_S + LATE_S


async def test_behind_the_guard_a_frozen_server_costs_one_call_its_timeout_and_no_other(
    server: EmbeddedRedis,
) -> None:
    store = GuardedStateStore(
        RedisStateStore(server.url, timeout_s=TIMEOUT_S),
        lambda: StoreBreaker(backoff_s=0.05, max_backoff_s=0.05),
    )
    await until(lambda: answers(store))
    calls_before = store.calls
    os.kill(server.pid, signal.SIGSTOP)
    took = []
    begun = time.monotonic()
    while time.monotonic() - begun < 0.8:
        took.append(await fails_after(store.get("g", "a")))
        await asyncio.sleep(0.005)
    # It was tried again and again, and not by these.
    assert store.calls - calls_before > 2
    assert (store.is_available, store.refused) == (False, len(took) - 1)
    assert took[0] >= TIMEOUT_S * 0.9
    assert sorted(took[1:])[len(took) // 2] < TIMEOUT_S / 10
    os.kill(server.pid, signal.SIGCONT)

    async def is_well() -> bool:
        return store.is_available

    await until(is_well)
    assert await store.get("g", "probe") == b"1"
    assert store.since <= time.time()
    await store.close()


async def test_a_key_s_group_stays_in_one_slot_and_its_index_bounded(server: EmbeddedRedis) -> None:
    clock = [1000.0]
    store = RedisStateStore(server.url, timeout_s=5.0, now=lambda: clock[0])
    raw = Redis.from_url(server.url)
    for i in range(50):
        await store.put("sessions:chat", str(i), b"1", ttl_s=0.01)
    assert all(b"{sessions:chat}" in key for key in await raw.keys("graceway:*"))
    clock[0] += 2 * 3600
    await store.put("sessions:chat", "last", b"1", ttl_s=60)
    assert await raw.zcard("graceway:{sessions:chat}") == 1
    await store.close()
    await raw.aclose()


async def test_the_embedded_server_is_bounded_and_private(server: EmbeddedRedis) -> None:
    raw = Redis.from_url(server.url, decode_responses=True)
    settings = await raw.config_get("*")
    assert settings["maxmemory"] == str(256 * 1024 * 1024)
    assert settings["maxmemory-policy"] == "allkeys-lru"
    assert (settings["port"], settings["save"], settings["appendonly"]) == ("0", "", "no")
    folder = os.path.dirname(settings["unixsocket"])
    assert os.stat(folder).st_mode & 0o077 == 0
    await raw.aclose()
    await server.stop()
    assert not os.path.exists(folder)
