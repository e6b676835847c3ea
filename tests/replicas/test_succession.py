"""Who may leave when: an upgrade's old replicas one by one, a tier that shrinks at once, the last one when nobody comes."""

import asyncio
import time

import pytest

from replicas.succession import ENDING, NOBODY_COMES_S, SYSTEM, may_leave, until_replaced
from replicas.supervisor import Supervisor
from state_store.memory import MemoryStateStore
from state_store.records import REPLICAS, ReplicaRecord
from tests.replicas.test_supervisor import replica


def record(name: str, state: str = "ready", is_leaving: bool = False) -> ReplicaRecord:
    return ReplicaRecord(
        replica=name, model="chat", tier="primary", url="http://127.0.0.1:1", served_model="m",
        state=state, reason="", zone="", slots=4, heartbeat_s=1.0, as_of=time.time(), is_leaving=is_leaving,
    )  # fmt: skip


OLD = [record("old-1", is_leaving=True), record("old-2", is_leaving=True)]


@pytest.mark.parametrize(
    ("others", "waited_s", "leaves"),
    [
        pytest.param([record("b")], 0.0, True, id="a tier shrinks"),
        pytest.param([record("new-1", "starting")], 60.0, False, id="its successor loads"),
        pytest.param([record("new-1", "down")], 60.0, False, id="its successor starts again"),
        pytest.param([record("new-1", "draining")], 60.0, True, id="who drains is no successor"),
        pytest.param([], 1.0, False, id="nobody has come yet"),
        pytest.param([], NOBODY_COMES_S, True, id="nobody comes"),
    ],
)
def test_the_only_old_one(others: list[ReplicaRecord], waited_s: float, leaves: bool) -> None:
    assert may_leave("old-1", [OLD[0], *others], waited_s) is leaves


@pytest.mark.parametrize(
    ("new", "leaving"),
    [
        ([record("new-1", "starting"), record("new-2", "starting")], []),
        ([record("new-1"), record("new-2", "starting")], ["old-1"]),
        ([record("new-1"), record("new-2")], ["old-1", "old-2"]),
    ],
)
def test_an_upgrade_goes_one_by_one(new: list[ReplicaRecord], leaving: list[str]) -> None:
    assert [r.replica for r in OLD if may_leave(r.replica, [*OLD, *new], 60.0)] == leaving


async def ready_supervisor(store: MemoryStateStore) -> Supervisor:
    supervisor = Supervisor(replica(), store)
    supervisor.state = "ready"
    return supervisor


async def test_it_serves_until_another_is_ready() -> None:
    store = MemoryStateStore()
    await store.put(REPLICAS, "new-1", record("new-1", "starting").to_bytes(), ttl_s=60)
    supervisor = await ready_supervisor(store)
    leaving = asyncio.create_task(until_replaced(supervisor, store))
    done, _ = await asyncio.wait([leaving], timeout=0.6)
    assert not done
    assert supervisor.record().is_leaving
    assert supervisor.is_ready
    await store.put(REPLICAS, "new-1", record("new-1").to_bytes(), ttl_s=60)
    await asyncio.wait_for(leaving, 5.0)


async def test_it_waits_for_nobody_when_everything_ends() -> None:
    store = MemoryStateStore()
    await store.put(SYSTEM, ENDING, b"1", ttl_s=60)
    await asyncio.wait_for(until_replaced(await ready_supervisor(store), store), 1.0)
