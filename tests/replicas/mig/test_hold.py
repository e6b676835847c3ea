"""A replica's hold on a slice, from taking it to losing it, over the driver's library with recorded layouts."""

import asyncio

import pytest

from replicas.mig import hold
from replicas.mig.discovery import discover
from replicas.mig.hold import SliceHold
from replicas.mig.lease import SLICES, SliceRecord
from state_store.memory import MemoryStateStore
from tests.replicas.mig.test_discovery import Install, driver, h200

__all__ = ["driver"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold, "RENEW_S", 0.02)
    monkeypatch.setattr(hold, "ASK_AGAIN_S", 0.02)


async def test_two_replicas_get_two_slices_and_a_third_waits_until_one_is_given_back(driver: Install) -> None:
    driver(h200())
    store = MemoryStateStore()
    first, second = SliceHold(store, "n", "a", "3g.71gb"), SliceHold(store, "n", "b", "3g.71gb")
    assert (await first.take()).uuid == "MIG-3g"
    waiting = asyncio.create_task(second.take())
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    await first.release()
    assert (await asyncio.wait_for(waiting, 5.0)).environment == {"CUDA_VISIBLE_DEVICES": "MIG-3g"}


async def test_a_slice_that_is_gone_is_lost(driver: Install) -> None:
    driver(h200())
    held = SliceHold(MemoryStateStore(), "n", "a", "3g.71gb", lambda: discover())
    await held.take()
    keeping = asyncio.create_task(held.keep())
    done, _ = await asyncio.wait([keeping], timeout=0.2)
    assert not done
    gone = h200()
    gone.slices[0] = None
    driver(gone)
    assert "no longer on GPU 0" in await asyncio.wait_for(keeping, 5.0)


async def test_a_slice_that_another_has_leased_is_lost(driver: Install) -> None:
    driver(h200())
    store = MemoryStateStore()
    held = SliceHold(store, "n", "a", "3g.71gb")
    await held.take()
    others = SliceRecord("MIG-3g", "3g.71gb", "n", "b", 0.0)
    await store.put(SLICES, "MIG-3g", others.to_bytes(), ttl_s=60)
    assert "another replica" in await asyncio.wait_for(held.keep(), 5.0)
    await held.release()
    assert await store.get(SLICES, "MIG-3g") == others.to_bytes()
