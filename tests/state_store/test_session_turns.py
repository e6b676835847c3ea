"""Session records on every kind of store: turns go up, whoever writes late changes nothing, what may be lost is said."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from loadtests.processes import RedisProcess
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStore
from state_store.redis import RedisStateStore
from state_store.session_turns import SessionRecord, bind, step

pytestmark = pytest.mark.asyncio(loop_scope="session")
NOTHING = SessionRecord()


@pytest_asyncio.fixture(params=["memory", "redis"], loop_scope="session")
async def store(request: pytest.FixtureRequest) -> AsyncIterator[StateStore]:
    if request.param == "memory":
        yield MemoryStateStore()
        return
    async with RedisProcess() as server:
        redis = RedisStateStore(server.url, timeout_s=5.0)
        yield redis
        await redis.close()


async def turn(store: StateStore, known: SessionRecord = NOTHING, turns: int = 1) -> SessionRecord:
    return await step(store, "m", "s", known, turns=turns, ttl_s=60)


async def pin(
    store: StateStore, at: SessionRecord, replica: str, *, moves: bool = False, tier: str = "best"
) -> str:
    return await bind(store, "m", "s", at, tier, replica, moves=moves, ttl_s=60)


async def test_turns_of_one_epoch_go_up_by_one(store: StateStore) -> None:
    first = await turn(store)
    assert (first.turn, first.cause) == (1, "new")
    assert first.epoch > 1_700_000_000_000
    later = [await turn(store, first if n % 2 else NOTHING) for n in range(4)]
    assert [(r.epoch, r.turn, r.cause) for r in later] == [(first.epoch, n, "") for n in (2, 3, 4, 5)]
    at_once = await asyncio.gather(*(turn(store) for _ in range(20)))
    assert sorted(r.turn for r in at_once) == list(range(6, 26))


async def test_what_a_gateway_knows_better_is_taken_over(store: StateStore) -> None:
    first = await turn(store)
    ahead = replace(first, turn=9, replicas={"best": "a"})
    assert (await turn(store, ahead, turns=0)).turn == 9
    found = await turn(store)
    assert (found.turn, found.replicas, found.epoch) == (10, {"best": "a"}, first.epoch)


async def test_turns_that_were_counted_without_the_store_count_on(store: StateStore) -> None:
    own = SessionRecord(turn=3, replicas={"best": "a"})
    found = await turn(store, own, turns=0)
    assert (found.turn, found.cause, found.replicas) == (3, "new", {"best": "a"})
    assert found.epoch > 1_700_000_000_000
    # Another gateway had turns of its own meanwhile: no epoch ends by that.
    other = await turn(store, SessionRecord(turn=5, replicas={"best": "b"}), turns=0)
    assert (other.epoch, other.turn, other.cause, other.replicas) == (found.epoch, 5, "", {"best": "a"})


async def test_a_record_that_is_gone_begins_a_new_epoch(store: StateStore) -> None:
    found = await turn(store, SessionRecord(5, 8, {"best": "a"}, home="another"))
    assert found.epoch > 5
    assert (found.turn, found.cause, found.replicas) == (9, "lost", {"best": "a"})


async def test_the_first_to_bind_has_it_and_the_latest_move_counts(store: StateStore) -> None:
    first, second = await turn(store), await turn(store)
    assert await pin(store, second, "a") == "a"
    assert await pin(store, first, "b") == "a"
    assert await pin(store, second, "c", moves=True) == "c"
    assert await pin(store, first, "d", moves=True) == "c"
    assert await pin(store, second, "x", tier="small") == "x"
    assert (await turn(store)).replicas == {"best": "c", "small": "x"}


async def test_who_binds_what_the_store_does_not_know_is_told_so(store: StateStore) -> None:
    assert await pin(store, SessionRecord(5, 1), "a") == ""
    first = await turn(store)
    assert await pin(store, replace(first, turn=2), "a") == ""
    assert await pin(store, replace(first, epoch=first.epoch - 1, turn=9), "a", moves=True) == "a"
    assert await pin(store, replace(first, epoch=first.epoch - 1, turn=9), "b", moves=True) == "a"


async def test_another_server_than_the_one_it_was_written_on_begins_a_new_epoch() -> None:
    async with (
        RedisProcess() as master,
        RedisProcess("--replicaof", "127.0.0.1", str(master.port)) as replica,
    ):
        # A quarter of a second is what it waits for a replica that is none any more.
        old, new = (RedisStateStore(f"{s.url}?wait_replicas=1", timeout_s=0.5) for s in (master, replica))
        async with asyncio.timeout(10):
            while b"link_status:up" not in await replica.ask("INFO", "replication"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        async with asyncio.timeout(10):
            # Its master hears of it a moment later.
            while (first := await turn(old)).kept != "replicated":
                pass
        assert await replica.ask("REPLICAOF", "NO", "ONE") == b"+OK\r\n"
        second, third = await turn(new), await turn(new)
        assert second.epoch > first.epoch
        assert (second.cause, second.turn) == ("moved", first.turn + 1)
        assert (third.epoch, third.cause, third.turn) == (second.epoch, "", first.turn + 2)
        # The old one does not know yet: it counts on in its own epoch, but can't say that this is kept.
        stale = await turn(old)
        assert (stale.epoch, stale.turn, stale.kept) == (first.epoch, first.turn + 1, "unconfirmed")
        await old.close()
        await new.close()
