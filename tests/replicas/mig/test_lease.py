"""Leases of slices, on the in-memory store."""

import asyncio

import pytest

from replicas.mig.discovery import Slice
from replicas.mig.lease import SLICES, SliceLeases
from state_store.memory import MemoryStateStore

SMALL = [Slice(f"MIG-{i}", "1g.18gb", 0, 16 * 1024**3, 16, 7 + i) for i in range(3)]
LARGE = Slice("MIG-large", "3g.71gb", 0, 69 * 1024**3, 60, 2)
ALL = [*SMALL, LARGE]


@pytest.fixture
def store() -> MemoryStateStore:
    return MemoryStateStore()


@pytest.fixture
def leases(store: MemoryStateStore) -> SliceLeases:
    return SliceLeases(store, "node-1", ttl_s=30.0, wall=lambda: 1000.0)


async def test_no_two_replicas_get_one_slice(leases: SliceLeases) -> None:
    got = await asyncio.gather(*(leases.acquire(f"r{i}", "1g.18gb", ALL) for i in range(4)))
    held = [s.uuid for s in got if s is not None]
    assert sorted(held) == ["MIG-0", "MIG-1", "MIG-2"]
    assert got.count(None) == 1


async def test_only_slices_of_the_profile_are_given(leases: SliceLeases) -> None:
    assert await leases.acquire("r", "3g.71gb", ALL) == LARGE
    assert await leases.acquire("other", "3g.71gb", ALL) is None


async def test_a_replica_that_comes_back_gets_its_slice_again(leases: SliceLeases) -> None:
    await leases.acquire("first", "1g.18gb", ALL)
    mine = await leases.acquire("r", "1g.18gb", ALL)
    assert await leases.acquire("r", "1g.18gb", ALL) == mine
    assert len(await leases.held()) == 2


async def test_a_released_slice_is_free_and_anothers_stays(leases: SliceLeases) -> None:
    mine = await leases.acquire("r", "3g.71gb", ALL)
    assert mine is not None
    await leases.release("someone else", mine)
    assert await leases.acquire("next", "3g.71gb", ALL) is None
    await leases.release("r", mine)
    assert await leases.acquire("next", "3g.71gb", ALL) == mine


async def test_renewal_fails_once_another_has_it(leases: SliceLeases, store: MemoryStateStore) -> None:
    mine = await leases.acquire("r", "3g.71gb", ALL)
    assert mine is not None
    assert await leases.renew("r", mine)
    await store.delete(SLICES, mine.uuid)
    assert await leases.renew("r", mine)
    await store.delete(SLICES, mine.uuid)
    assert await leases.acquire("next", "3g.71gb", ALL) == mine
    assert not await leases.renew("r", mine)
    assert (await leases.held())[mine.uuid].replica == "next"
