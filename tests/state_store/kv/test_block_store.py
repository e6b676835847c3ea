"""Blocks in a real Redis: written once, found again, counted, let go; and a server that is frozen, full or gone."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from state_store.kv.block_format import HEAD_BYTES, BlockId, pack, unpack
from state_store.kv.block_store import BlockStore, BlocksUnavailable, Outgoing
from state_store.kv.budget import Budget, Use
from state_store.kv.turn import STORED, TURNS
from state_store.redis import RedisStateStore
from tests.redis_server import RedisServer

SIZE = 100_000
PLENTY = Budget(size_bytes=1 << 30, ttl_s=100.0)
WITHIN_S = 5.0
LATE_S = 0.3
"""By which a timer may be late on a full machine."""


class Server:
    """Stores on a Redis."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.redis, self.freeze, self.thaw, self.url = server.redis, server.freeze, server.thaw, server.url

    def store(
        self,
        budget: Budget = PLENTY,
        wall: Callable[[], float] = time.time,
        password: str = "",
        options: str = "",
    ) -> BlockStore:
        store = BlockStore(self.url.replace("unix://", f"unix://:{password}@") + options, budget, wall=wall)
        self._server.at_end(store.close)
        return store


@pytest.fixture
def server(redis_server: RedisServer) -> Server:
    return Server(redis_server)


class Wall:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


def block(number: int) -> BlockId:
    return BlockId(b"f" * 16, number.to_bytes(32, "big"))


def outgoing(number: int, size: int = SIZE) -> Outgoing:
    head, payload = pack(block(number), memoryview(number.to_bytes(2, "big") * (size // 2)))
    return Outgoing(block(number), head, payload)


def uses(*numbers: int) -> list[Use]:
    return [Use(block(number).key, HEAD_BYTES + SIZE, depth) for depth, number in enumerate(numbers)]


def fetched(store: BlockStore, *numbers: int) -> list[str]:
    """What each block is: empty for a good one, `absent`, or what is wrong with it."""
    place = memoryview(bytearray(HEAD_BYTES + SIZE))
    wanted, found = [block(number) for number in numbers], []
    for one, size in zip(
        wanted,
        store.fetch(wanted, [place] * len(wanted), time.monotonic() + WITHIN_S),
        strict=True,
    ):
        if size is None:
            found.append("absent")
        else:
            found.append(unpack(one, place[: min(size, len(place))], memoryview(bytearray(SIZE))))
    return found


@contextmanager
def fails_within(seconds: float) -> Iterator[None]:
    begun = time.monotonic()
    with pytest.raises(BlocksUnavailable):
        yield
    assert time.monotonic() - begun < seconds + LATE_S


def test_what_is_stored_is_found_and_fetched_whole(server: Server) -> None:
    store = server.store()
    assert store.store([outgoing(n) for n in range(10)]) == [True] * 10
    assert store.exist([block(3), block(99), block(9)]) == [True, False, True]
    assert fetched(store, *range(10)) == [""] * 10
    assert fetched(store, 99, 1, 98, 2, 97, 3, 4) == ["absent", "", "absent", "", "absent", "", ""]


def test_a_block_is_written_once(server: Server) -> None:
    first, second = server.store(), server.store()
    assert first.store([outgoing(1), outgoing(2)]) == [True, True]
    assert second.store([outgoing(2), outgoing(3)]) == [False, True]


def test_what_is_too_long_for_its_place_is_read_past(server: Server) -> None:
    store = server.store()
    store.store([outgoing(1), outgoing(2, 10 * SIZE), outgoing(3)])
    assert fetched(store, 1, 2, 3)[0::2] == ["", ""]
    assert fetched(store, 2) != [""]


def test_a_cut_or_empty_value_spoils_nothing_after_it(server: Server) -> None:
    store, redis = server.store(), server.redis()
    store.store([outgoing(n) for n in range(5)])
    redis.set(block(1).key, redis.get(block(1).key)[:-5])  # type: ignore[index]
    redis.set(block(2).key, b"")
    redis.delete(block(3).key)
    redis.rpush(block(3).key, b"a list")
    assert fetched(store, *range(5)) == ["", "truncated", "truncated", "absent", ""]


def test_the_budget_holds_and_the_least_recently_used_go_first(server: Server) -> None:
    wall = Wall()
    store = server.store(Budget(size_bytes=5 * (HEAD_BYTES + SIZE), ttl_s=100.0), wall)
    for number in range(8):
        store.store([outgoing(number)])
        wall.at += 1
        store.count(uses(number))
    assert store.exist([block(n) for n in range(8)]) == [False] * 3 + [True] * 5


def test_a_prefix_that_is_used_again_outlasts_newer_blocks(server: Server) -> None:
    wall = Wall()
    store = server.store(Budget(size_bytes=4 * (HEAD_BYTES + SIZE), ttl_s=100.0), wall)
    for number in (0, 0, *range(1, 9)):
        store.store([outgoing(number)])
        wall.at += 1
        store.count(uses(number))
    assert store.exist([block(n) for n in range(9)]) == [True] + [False] * 5 + [True] * 3


def test_of_one_prefix_the_end_goes_first(server: Server) -> None:
    store = server.store(Budget(size_bytes=3 * (HEAD_BYTES + SIZE), ttl_s=100.0))
    store.store([outgoing(n) for n in range(5)])
    assert store.count(uses(*range(5))) == {block(3).key, block(4).key}
    assert store.exist([block(n) for n in range(5)]) == [True] * 3 + [False] * 2


def test_what_nobody_uses_for_its_time_goes(server: Server) -> None:
    wall = Wall()
    store = server.store(wall=wall)
    store.store([outgoing(1), outgoing(2)])
    store.count(uses(1))
    wall.at += 60
    store.count(uses(2))
    wall.at += 50
    assert store.count(uses(2)) == {block(1).key}
    assert store.exist([block(1), block(2)]) == [False, True]


@pytest.mark.parametrize(
    "other", [Budget(1 << 30, ttl_s=1.0, pool="b"), Budget(1, ttl_s=100.0, pool="b")], ids=["time", "room"]
)
def test_a_pool_s_time_and_room_are_no_other_s(server: Server, other: Budget) -> None:
    wall = Wall()
    one, two = server.store(replace(PLENTY, pool="a"), wall), server.store(other, wall)
    one.store([outgoing(1)])
    one.count(uses(1))
    wall.at += 10
    two.store([outgoing(2)])
    two.count(uses(2))
    assert one.exist([block(1)]) == [True]


@pytest.mark.parametrize(("is_new", "most_s"), [(True, 101), (False, 1001)])
def test_a_block_stays_in_redis_for_its_time_and_longer_only_when_used_again(
    server: Server, is_new: bool, most_s: int
) -> None:
    store = server.store()
    store.store([outgoing(1)])
    assert server.redis().ttl(block(1).key) <= 101
    store.count([replace(use, is_new=is_new) for use in uses(1)])
    assert most_s - 30 < server.redis().ttl(block(1).key) <= most_s


def test_of_far_too_many_blocks_some_go_at_a_time(server: Server) -> None:
    store = server.store(Budget(size_bytes=100, ttl_s=100.0))
    gone = store.count([Use(b"graceway:kv:%d" % number, 1, number) for number in range(5000)])
    assert len(gone) == 2048
    assert [len(store.count(uses(1))) for _ in range(2)] == [2048, 5001 - 2 * 2048]


def test_counting_goes_on_when_redis_lost_its_number(server: Server) -> None:
    store = server.store(Budget(size_bytes=3 * (HEAD_BYTES + SIZE), ttl_s=100.0))
    store.store([outgoing(n) for n in range(3)])
    store.count(uses(0, 1, 2))
    server.redis().delete("graceway:{kv}:bytes")
    store.store([outgoing(3)])
    assert len(store.count([Use(block(3).key, HEAD_BYTES + SIZE, 0)])) == 1


def test_a_frozen_server_costs_one_timeout_and_then_nothing(server: Server) -> None:
    store = server.store()
    store.store([outgoing(1)])
    server.freeze()
    with fails_within(0.05):
        store.exist([block(1)])
    with fails_within(0.0):
        store.exist([block(1)])
    assert not store.is_available


async def test_it_is_used_again_when_it_is_back(server: Server) -> None:
    store = server.store()
    server.freeze()
    with fails_within(0.05):
        store.exist([block(1)])
    server.thaw()
    async with asyncio.timeout(10):
        while not store.is_available:
            try:
                store.exist([block(1)])
            except BlocksUnavailable:
                await asyncio.sleep(0.02)
    assert store.store([outgoing(1)]) == [True]


def test_a_server_that_hung_up_on_who_idled_is_not_one_that_fails(server: Server) -> None:
    told: list[str] = []
    store, redis = BlockStore(server.url, PLENTY, told=told.append), server.redis()
    assert store.store([outgoing(1)]) == [True]
    redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert store.exist([block(1)]) == [True]
    assert told == []
    store.close()


def test_a_server_that_stands_still_for_a_moment_takes_what_is_written(server: Server) -> None:
    store = server.store()
    assert store.store([outgoing(0)]) == [True]
    server.freeze()
    thaw = threading.Timer(0.5, server.thaw)
    thaw.start()
    assert store.store([outgoing(n) for n in range(1, 5)]) == [True] * 4
    thaw.join()


def test_a_server_that_freezes_in_the_middle_of_a_load_ends_it(server: Server) -> None:
    store = server.store()
    store.store([outgoing(n) for n in range(50)])
    place = memoryview(bytearray(HEAD_BYTES + SIZE))
    wanted = [block(n) for n in range(50)]
    loading = store.fetch(wanted, [place] * 50, time.monotonic() + 60)
    assert next(loading) == HEAD_BYTES + SIZE
    server.freeze()
    # What had come of a block, and what was to come.
    with fails_within(2 * 0.4):
        list(loading)


def test_a_load_ends_at_its_deadline(server: Server) -> None:
    store = server.store()
    place = memoryview(bytearray(HEAD_BYTES + SIZE))
    with fails_within(0.0):
        list(store.fetch([block(1)], [place], time.monotonic() - 1))


def test_a_full_server_still_gives_and_is_not_asked_to_take_for_a_while(server: Server) -> None:
    store, redis = server.store(), server.redis()
    store.store([outgoing(1)])
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)
    with pytest.raises(BlocksUnavailable, match="OOM"):
        store.store([outgoing(2)])
    with pytest.raises(BlocksUnavailable, match="not tried again yet: OOM"):
        store.store([outgoing(2)])
    assert fetched(store, 1) == [""]


def test_who_wants_to_know_is_told_once_why_it_fails_and_once_that_it_is_back(server: Server) -> None:
    told: list[str] = []
    store, redis = BlockStore(server.url, PLENTY, now=(clock := Wall()), told=told.append), server.redis()
    redis.config_set("min-replicas-to-write", 1)
    for _ in range(3):
        with pytest.raises(BlocksUnavailable):
            store.store([outgoing(1)])
        clock.at += 60
    redis.config_set("min-replicas-to-write", 0)
    assert store.store([outgoing(1)]) == [True]
    assert [why[:10] for why in told] == ["NOREPLICAS", ""]
    store.close()


def test_no_server_is_unavailable() -> None:
    with fails_within(0.1):
        BlockStore("unix:///nowhere/at/all.sock", PLENTY).exist([block(1)])


@pytest.mark.parametrize(("password", "is_right"), [("right", True), ("wrong", False), ("", False)])
def test_it_logs_in(server: Server, password: str, is_right: bool) -> None:
    redis, store = server.redis(), server.store(password=password)
    redis.config_set("requirepass", "right")
    try:
        if is_right:
            assert store.store([outgoing(1)]) == [True]
        else:
            with pytest.raises(BlocksUnavailable, match=r"WRONGPASS|NOAUTH"):
                store.store([outgoing(1)])
    finally:
        redis.config_set("requirepass", "")


async def test_the_state_store_reads_the_mark_of_a_stored_turn(server: Server) -> None:
    await asyncio.to_thread(server.store().acknowledge, "turn-1")
    state = RedisStateStore(server.url)
    assert await state.get(TURNS, "turn-1") == STORED
    await state.close()


def test_what_must_be_copied_is_not_stored_while_a_replica_of_redis_lacks_it(server: Server) -> None:
    store = server.store(options="?wait_replicas=1")
    store.store([outgoing(1)])
    assert not store.count(uses(1))
    with pytest.raises(BlocksUnavailable, match="0 of 1 replicas"):
        store.count(uses(1), must_be_copied=True)
