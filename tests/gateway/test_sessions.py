"""Session bindings over a real store in memory, and over one that is gone."""

import orjson
import pytest

from gateway import sessions as module
from gateway.sessions import FRESH_S, TTL_S, Sessions
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStoreUnavailable

GROUP = "sessions:chat"


class Clock:
    """Stands in for the monotonic clock of both the store and the gateway."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Flaky(MemoryStateStore):
    """A store that can be switched off, and counts what it is asked."""

    is_down = False
    reads = writes = 0

    async def get(self, group: str, key: str) -> bytes | None:
        self.reads += 1
        self._check()
        return await super().get(group, key)

    async def put(
        self, group: str, key: str, value: bytes, *, ttl_s: float, only_if_absent: bool = False
    ) -> bool:
        self.writes += 1
        self._check()
        return await super().put(group, key, value, ttl_s=ttl_s, only_if_absent=only_if_absent)

    def _check(self) -> None:
        if self.is_down:
            raise StateStoreUnavailable("down")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "monotonic", found)
    return found


@pytest.fixture
def store(clock: Clock) -> Flaky:
    return Flaky(clock)


async def bind(found: Sessions, session: str, tier: str, replica: str, is_lost: bool = False) -> None:
    found.bind(session, tier, replica, is_lost)
    await found.close()


async def stored(store: MemoryStateStore, session: str = "s") -> dict[str, str] | None:
    raw = await store.get(GROUP, session)
    return None if raw is None else orjson.loads(raw)


async def test_two_gateways_give_a_session_the_same_replica(store: Flaky) -> None:
    one, two = Sessions("chat", store), Sessions("chat", store)
    assert await one.find("s") == {}
    await bind(one, "s", "best", "a")
    assert await two.find("s") == {"best": "a"}
    assert await one.find("s") == {"best": "a"}


async def test_models_do_not_share_sessions(store: Flaky) -> None:
    await bind(Sessions("chat", store), "s", "best", "a")
    assert await Sessions("other", store).find("s") == {}


async def test_no_session_is_no_session(store: Flaky) -> None:
    found = Sessions("chat", store)
    assert await found.find("") == {}
    await bind(found, "", "best", "a")
    assert (len(found), store.reads, store.writes) == (0, 0, 0)


async def test_a_binding_stays_when_another_replica_serves_a_turn(store: Flaky) -> None:
    found = Sessions("chat", store)
    await bind(found, "s", "best", "a")
    await bind(found, "s", "best", "b")
    assert await stored(store) == {"best": "a"}


async def test_a_lost_replica_s_session_moves(store: Flaky) -> None:
    found = Sessions("chat", store)
    await bind(found, "s", "best", "a")
    await bind(found, "s", "best", "b", is_lost=True)
    assert await stored(store) == {"best": "b"}
    assert await found.find("s") == {"best": "b"}


async def test_each_tier_has_its_own_binding(store: Flaky) -> None:
    found = Sessions("chat", store)
    await bind(found, "s", "best", "a")
    await bind(found, "s", "small", "x")
    assert await stored(store) == {"best": "a", "small": "x"}


async def test_of_two_gateways_that_bind_at_once_the_first_wins(store: Flaky, clock: Clock) -> None:
    one, two = Sessions("chat", store), Sessions("chat", store)
    await one.find("s")
    await two.find("s")
    await bind(one, "s", "best", "a")
    await bind(two, "s", "best", "b")
    assert await stored(store) == {"best": "a"}
    assert await two.find("s") == {"best": "a"}


async def test_its_own_copy_is_trusted_for_a_while(store: Flaky, clock: Clock) -> None:
    one, two = Sessions("chat", store), Sessions("chat", store)
    await bind(one, "s", "best", "a")
    await two.find("s")
    await bind(one, "s", "best", "b", is_lost=True)
    reads = store.reads
    assert await two.find("s") == {"best": "a"}
    assert store.reads == reads
    clock.now += FRESH_S
    assert await two.find("s") == {"best": "b"}


async def test_without_the_store_it_goes_by_what_it_knows(store: Flaky, clock: Clock) -> None:
    found = Sessions("chat", store)
    await bind(found, "s", "best", "a")
    store.is_down = True
    clock.now += 10 * FRESH_S
    assert await found.find("s") == {"best": "a"}
    assert await found.find("new") == {}
    await bind(found, "new", "best", "b")
    assert await found.find("new") == {"best": "b"}


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"7", b"\xff"])
async def test_a_broken_value_is_no_binding(store: Flaky, raw: bytes) -> None:
    await store.put(GROUP, "s", raw, ttl_s=9)
    assert await Sessions("chat", store).find("s") == {}


async def test_what_an_emptied_store_lost_is_put_back_by_the_next_turn(store: Flaky, clock: Clock) -> None:
    found = Sessions("chat", store)
    await bind(found, "s", "best", "a")
    await store.delete(GROUP, "s")
    clock.now += FRESH_S
    assert await found.find("s") == {"best": "a"}
    await bind(found, "s", "best", "a")
    assert await stored(store) == {"best": "a"}


async def test_what_was_bound_without_the_store_is_put_there_once_it_is_back(
    store: Flaky, clock: Clock
) -> None:
    found = Sessions("chat", store)
    store.is_down = True
    await bind(found, "s", "best", "a")
    store.is_down = False
    await found.find("s")
    await bind(found, "s", "best", "a")
    assert await stored(store) == {"best": "a"}


async def test_a_session_in_use_outlives_its_ttl(store: Flaky, clock: Clock) -> None:
    found = Sessions("chat", store)
    for _ in range(30):
        await found.find("s")
        await bind(found, "s", "best", "a")
        clock.now += TTL_S / 10
    assert await stored(store) == {"best": "a"}
    # Not written anew with every turn.
    assert store.writes < 12


async def test_the_ones_used_least_recently_are_forgotten(
    store: Flaky, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KNOWN_SESSIONS", 3)
    found = Sessions("chat", store)
    for session in ("s", "t", "u"):
        await bind(found, session, "best", "a")
    await found.find("s")
    await bind(found, "v", "best", "a")
    reads = store.reads
    await found.find("s")
    assert (len(found), store.reads) == (3, reads)
    assert await found.find("t") == {"best": "a"}
    assert store.reads == reads + 1
