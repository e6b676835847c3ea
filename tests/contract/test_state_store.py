"""One suite over every backend of the `StateStore` protocol."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from state_store.embedded import EmbeddedRedis
from state_store.guarded import GuardedStateStore
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStore
from state_store.redis import RedisStateStore

# The suite is about meaning; what a slow machine does to 50 ms is tested elsewhere.
PATIENT_S = 5.0


@pytest.fixture(params=["memory", "redis", "guarded redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[StateStore]:
    if request.param == "memory":
        yield MemoryStateStore()
        return
    server = EmbeddedRedis()
    await server.start()
    try:
        redis = RedisStateStore(server.url, timeout_s=PATIENT_S)
        opened: StateStore = redis if request.param == "redis" else GuardedStateStore(redis)
        yield opened
        await opened.close()
    finally:
        await server.stop()


async def test_a_value_is_there_until_deleted(store: StateStore) -> None:
    assert await store.get("g", "k") is None
    assert await store.put("g", "k", b"\x00\xff\r\n", ttl_s=60)
    assert await store.get("g", "k") == b"\x00\xff\r\n"
    await store.delete("g", "k")
    await store.delete("g", "k")
    assert await store.get("g", "k") is None
    assert await store.scan("g") == {}


async def test_a_later_value_replaces_the_earlier(store: StateStore) -> None:
    await store.put("g", "k", b"old", ttl_s=60)
    assert await store.put("g", "k", b"new", ttl_s=60)
    assert await store.get("g", "k") == b"new"
    assert await store.scan("g") == {"k": b"new"}


async def test_only_if_absent_keeps_what_is_there(store: StateStore) -> None:
    assert await store.put("g", "k", b"first", ttl_s=60, only_if_absent=True)
    assert not await store.put("g", "k", b"second", ttl_s=60, only_if_absent=True)
    assert await store.get("g", "k") == b"first"


async def test_of_many_that_put_if_absent_one_wins(store: StateStore) -> None:
    puts = (store.put("g", "k", bytes([i]), ttl_s=60, only_if_absent=True) for i in range(20))
    won = await asyncio.gather(*puts)
    assert won.count(True) == 1
    assert await store.get("g", "k") == bytes([won.index(True)])


async def test_a_value_expires_everywhere(store: StateStore) -> None:
    await store.put("g", "short", b"1", ttl_s=0.05)
    await store.put("g", "long", b"2", ttl_s=60)
    async with asyncio.timeout(5):
        while await store.get("g", "short") is not None:  # noqa: ASYNC110 - time, not an event, ends it
            await asyncio.sleep(0.01)
    assert await store.scan("g") == {"long": b"2"}
    assert await store.put("g", "short", b"3", ttl_s=60, only_if_absent=True)


async def test_renewing_extends_and_may_shorten(store: StateStore) -> None:
    await store.put("g", "extended", b"1", ttl_s=0.05)
    await store.put("g", "extended", b"1", ttl_s=60)
    await store.put("g", "shortened", b"2", ttl_s=60)
    await store.put("g", "shortened", b"2", ttl_s=0.05)
    async with asyncio.timeout(5):
        while await store.get("g", "shortened") is not None:  # noqa: ASYNC110 - time, not an event, ends it
            await asyncio.sleep(0.01)
    assert await store.scan("g") == {"extended": b"1"}


async def test_groups_are_apart(store: StateStore) -> None:
    await store.put("sessions:chat", "k", b"1", ttl_s=60)
    await store.put("sessions", "chat:k", b"2", ttl_s=60)
    assert await store.scan("sessions:chat") == {"k": b"1"}
    assert await store.scan("sessions") == {"chat:k": b"2"}
    assert await store.scan("nobody") == {}


async def test_keys_may_be_any_text(store: StateStore) -> None:
    keys = ["", "a b", "naïve:你好", "{tag}", "k" * 300]
    for key in keys:
        await store.put("g", key, key.encode(), ttl_s=60)
    assert await store.scan("g") == {key: key.encode() for key in keys}


async def test_a_large_value_comes_back_whole(store: StateStore) -> None:
    value = bytes(range(256)) * 4096
    await store.put("g", "k", value, ttl_s=60)
    assert await store.get("g", "k") == value
