"""One suite over every backend of the `StateStore` protocol."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from loadtests.processes import RedisProcess
from loadtests.redis_groups import running_cluster, running_sentinels
from state_store.buckets import Draw, Drawn, draw
from state_store.guarded import GuardedStateStore
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStore
from state_store.redis import RedisStateStore
from state_store.script import Fields, Script

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The suite is about meaning; what a slow machine does to 50 ms is tested elsewhere.
PATIENT_S = 5.0


APPEND = Script(
    "append",
    "local said = (redis.call('HGET', KEYS[1], 'said') or '') .. ARGV[1]\n"
    "redis.call('HSET', KEYS[1], 'said', said)\n"
    "return {said, #said}",
    lambda fields, words: [_append(fields, words[0]), b"%d" % len(fields[b"said"])],
)


def _append(fields: Fields, word: bytes) -> bytes:
    fields[b"said"] = fields.get(b"said", b"") + word
    return fields[b"said"]


@dataclass(frozen=True)
class Place:
    """One kind of store, and the servers behind it."""

    kind: str
    url: str = "memory"
    servers: tuple[RedisProcess, ...] = ()

    def open(self) -> StateStore:
        if self.kind == "memory":
            return MemoryStateStore()
        redis = RedisStateStore(self.url, timeout_s=PATIENT_S)
        return GuardedStateStore(redis) if self.kind == "guarded redis" else redis


@pytest_asyncio.fixture(
    scope="session", loop_scope="session", params=["memory", "redis", "guarded redis", "sentinels", "cluster"]
)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    kind: str = request.param
    async with AsyncExitStack() as stack:
        if kind == "memory":
            yield Place(kind)
        elif kind == "sentinels":
            watched = await stack.enter_async_context(running_sentinels())
            yield Place(kind, watched.url, (watched.master,))
        elif kind == "cluster":
            # Not the fixture of that name: one that is asked for inside another's loop can't start its own.
            cluster = await stack.enter_async_context(running_cluster())
            yield Place(kind, cluster.url, cluster.nodes)
        else:
            server = await stack.enter_async_context(RedisProcess())
            yield Place(kind, server.url, (server,))


@pytest_asyncio.fixture(loop_scope="session")
async def store(place: Place) -> AsyncIterator[StateStore]:
    opened = place.open()
    yield opened
    await opened.close()
    for server in place.servers:
        assert await server.ask("FLUSHALL") == b"+OK\r\n"


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


async def test_a_script_steps_from_what_it_left(store: StateStore) -> None:
    for word, said in (("a", b"a"), (b"b", b"ab"), ("c", b"abc")):
        ran = await store.run(APPEND, "g", "k", [word], ttl_s=60)
        assert ran.values == [said, b"%d" % len(said)]
    assert (await store.run(APPEND, "g", "other", ["z"], ttl_s=60)).values == [b"z", b"1"]
    assert (await store.run(APPEND, "h", "k", ["z"], ttl_s=60)).values == [b"z", b"1"]
    assert await store.get("g", "k") is None


async def test_steps_that_come_at_once_happen_one_after_the_other(store: StateStore) -> None:
    steps = await asyncio.gather(*(store.run(APPEND, "g", "k", ["x"], ttl_s=60) for _ in range(50)))
    assert sorted(int(ran.values[1]) for ran in steps) == list(range(1, 51))


async def test_an_entry_expires_unless_a_step_renews_it(store: StateStore) -> None:
    await store.run(APPEND, "g", "short", ["x"], ttl_s=0.05)
    await store.run(APPEND, "g", "renewed", ["x"], ttl_s=0.05)
    await store.run(APPEND, "g", "renewed", ["x"], ttl_s=60)
    await asyncio.sleep(0.1)
    assert (await store.run(APPEND, "g", "short", ["y"], ttl_s=60)).values[0] == b"y"
    assert (await store.run(APPEND, "g", "renewed", ["y"], ttl_s=60)).values[0] == b"xxy"


async def test_a_topic_is_read_in_its_order_and_on_from_any_place(store: StateStore) -> None:
    assert await store.read("t") == []
    places = [await store.append("t", b"%d" % n, max_values=100) for n in range(5)]
    assert await store.read("t") == [(place, b"%d" % n) for n, place in enumerate(places)]
    assert [value for _, value in await store.read("t", places[2])] == [b"3", b"4"]
    assert await store.read("t", places[-1]) == []
    assert await store.read("another") == []


async def test_a_topic_is_bounded(store: StateStore) -> None:
    await asyncio.gather(*(store.append("t", b"x", max_values=100) for _ in range(300)))
    assert 100 <= len(await store.read("t")) < 250


def of(
    used: float, wanted: float = 0.0, otherwise: float = 12.0, per_s: float = 0.001, sharers: int = 1
) -> Draw:
    return Draw(used, wanted, 12.0, per_s, otherwise, sharers)


def about(level: float, claim: float, sharers: int) -> Drawn:
    return Drawn(pytest.approx(level, abs=0.1), pytest.approx(claim, abs=0.1), sharers)


async def test_a_bucket_that_one_draws_from_is_all_its_own(store: StateStore) -> None:
    assert await draw(store, "g", "k", "a", of(0.0)) == about(12, 12, 1)
    assert await draw(store, "g", "k", "a", of(4.0)) == about(8, 8, 1)
    assert await draw(store, "g", "k", "a", of(9.0)) == about(-1, 0, 1)
    assert await draw(store, "g", "k", "a", of(-5.0)) == about(4, 4, 1)


async def test_the_claims_of_several_are_never_more_than_the_bucket_has(store: StateStore) -> None:
    assert await draw(store, "g", "k", "a", of(0.0)) == about(12, 12, 1)
    # All is claimed, so a second one gets nothing before the first has told again.
    assert await draw(store, "g", "k", "b", of(0.0)) == about(12, 0, 2)
    assert await draw(store, "g", "k", "a", of(4.0)) == about(8, 4, 2)
    assert await draw(store, "g", "k", "b", of(0.0)) == about(8, 2, 2)
    assert await draw(store, "g", "k", "b", of(0.0, wanted=3.0)) == about(8, 3, 2)
    assert await draw(store, "g", "k", "b", of(0.0, wanted=9.0)) == about(8, 4, 2)
    assert await draw(store, "g", "other", "b", of(0.0)) == about(12, 12, 1)


async def test_a_bucket_refills_up_to_its_size(store: StateStore) -> None:
    assert await draw(store, "g", "k", "a", of(12.0, per_s=1000.0)) == about(0, 0, 1)
    await asyncio.sleep(0.1)
    assert await draw(store, "g", "k", "a", of(0.0, per_s=1000.0)) == about(12, 12, 1)


async def test_a_bucket_nobody_knows_holds_what_they_believe(store: StateStore) -> None:
    assert await draw(store, "g", "k", "a", of(1.0, otherwise=9.0, sharers=4)) == about(8, 2, 4)
    assert await draw(store, "g", "k", "b", of(0.0, otherwise=1.0)) == about(8, 3, 2)


async def test_what_many_draw_at_once_is_drawn_once(store: StateStore) -> None:
    drawn = await asyncio.gather(*(draw(store, "g", "k", f"{n}", of(1.0)) for n in range(12)))
    assert sorted(round(each.level) for each in drawn) == list(range(12))
    # The first claimed all that was left then; what it has not used by its next word is everybody's.
    assert sum(each.claim for each in drawn) <= 11.1
