"""The memory backend on a clock that the test moves."""

from state_store.memory import MemoryStateStore


async def test_expired_values_are_dropped_and_not_only_hidden() -> None:
    clock = [0.0]
    store = MemoryStateStore(now=lambda: clock[0])
    for i in range(1000):
        await store.put("g", f"old {i}", b"1", ttl_s=10)
    clock[0] = 11.0
    for i in range(1000):
        await store.put("g", f"new {i}", b"1", ttl_s=10)
    assert sum(len(entries) for entries in store._groups.values()) < 1100
    assert len(await store.scan("g")) == 1000


async def test_a_value_lives_up_to_its_time_and_not_at_it() -> None:
    clock = [0.0]
    store = MemoryStateStore(now=lambda: clock[0])
    await store.put("g", "k", b"1", ttl_s=10)
    clock[0] = 9.99
    assert await store.get("g", "k") == b"1"
    clock[0] = 10.0
    assert await store.get("g", "k") is None
