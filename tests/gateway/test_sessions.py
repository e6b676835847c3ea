"""Sessions over a real store in memory, and over one that is gone."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway import sessions as module
from gateway.sessions import FRESH_S, TTL_S, Sessions
from gateway.turn import Turn
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStoreUnavailable
from state_store.script import Kept, Ran, Script


class Clock:
    """Stands in for the monotonic clock of both the store and the gateway."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Flaky(MemoryStateStore):
    """A store that can be switched off or emptied, and counts what it is asked."""

    is_down = False
    kept: Kept = "stored"
    runs = 0

    async def run(
        self, script: Script, group: str, key: str, arguments: Sequence[bytes | str], *, ttl_s: float
    ) -> Ran:
        self.runs += 1
        if self.is_down:
            raise StateStoreUnavailable("down")
        return replace(await super().run(script, group, key, arguments, ttl_s=ttl_s), kept=self.kept)

    def empty(self) -> None:
        self._entries.clear()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(module, "monotonic", found)
    monkeypatch.setattr(module, "PUT_BACK_S", 0.0)
    return found


@pytest.fixture
def store(clock: Clock) -> Flaky:
    return Flaky(clock)


async def answer(found: Sessions, session: str, tier: str, replica: str, is_lost: bool = False) -> Turn:
    """A turn that this replica serves."""
    turn = await found.begin(session, lambda *_: is_lost)
    found.bind(turn, tier, replica, is_lost)
    await found.settled()
    return turn


async def home(found: Sessions, session: str = "s") -> dict[str, str]:
    turn = await found.begin(session)
    await found.settled()
    return dict(turn.replicas)


async def put_back(found: Sessions) -> None:
    assert found._putting_back is not None
    await found._putting_back


async def test_two_gateways_give_a_session_the_same_replica(store: Flaky) -> None:
    one, two = Sessions("chat", store), Sessions("chat", store)
    assert await home(one) == {}
    await answer(one, "s", "best", "a")
    assert await home(two) == {"best": "a"}
    assert await home(one) == {"best": "a"}


async def test_models_do_not_share_sessions(store: Flaky) -> None:
    await answer(Sessions("chat", store), "s", "best", "a")
    assert await home(Sessions("other", store)) == {}


async def test_no_session_is_no_session(store: Flaky) -> None:
    found = Sessions("chat", store)
    turn = await answer(found, "", "best", "a")
    assert (turn.told(), len(found), store.runs) == ([], 0, 0)


async def test_a_binding_stays_when_another_replica_serves_a_turn(store: Flaky) -> None:
    found = Sessions("chat", store)
    await answer(found, "s", "best", "a")
    await answer(found, "s", "best", "b")
    assert await home(Sessions("chat", store)) == {"best": "a"}


async def test_a_lost_replica_s_session_moves(store: Flaky) -> None:
    found = Sessions("chat", store)
    await answer(found, "s", "best", "a")
    await answer(found, "s", "best", "b", is_lost=True)
    assert await home(found) == {"best": "b"}
    assert await home(Sessions("chat", store)) == {"best": "b"}


async def test_each_tier_has_its_own_binding(store: Flaky) -> None:
    found = Sessions("chat", store)
    await answer(found, "s", "best", "a")
    await answer(found, "s", "small", "x")
    assert await home(Sessions("chat", store)) == {"best": "a", "small": "x"}


async def test_of_two_gateways_that_bind_at_once_the_first_wins(store: Flaky, clock: Clock) -> None:
    one, two = Sessions("chat", store), Sessions("chat", store)
    first, second = await one.begin("s"), await two.begin("s")
    one.bind(first, "best", "a", False)
    await one.settled()
    two.bind(second, "best", "b", False)
    await two.settled()
    assert await home(one) == {"best": "a"}
    assert await home(two) == {"best": "a"}


async def test_a_writer_that_was_stopped_for_a_while_moves_nothing_back(store: Flaky) -> None:
    one, two = Sessions("chat", store), Sessions("chat", store)
    await answer(one, "s", "best", "a")
    stopped = await one.begin("s")
    await one.settled()
    await answer(two, "s", "best", "b", is_lost=True)
    one.bind(stopped, "best", "c", True)
    await one.settled()
    assert await home(Sessions("chat", store)) == {"best": "b"}
    assert await home(one) == {"best": "b"}


async def test_its_own_copy_of_a_binding_is_not_waited_for_while_it_is_young(
    store: Flaky, clock: Clock
) -> None:
    one, two = Sessions("chat", store), Sessions("chat", store)
    await answer(one, "s", "best", "a")
    await home(two)
    await answer(one, "s", "best", "b", is_lost=True)
    turn = await two.begin("s")
    assert (turn.replicas, turn.durability) == ({"best": "a"}, "local")
    await two.settled()
    assert (turn.replicas, turn.durability, turn.number) == ({"best": "b"}, "stored", 4)
    clock.now += FRESH_S
    assert (await two.begin("s")).replicas == {"best": "b"}


async def test_turns_go_up_through_all_gateways(store: Flaky) -> None:
    gateways = [Sessions("chat", store) for _ in range(3)]
    turns = []
    for number in range(9):
        turns.append(await gateways[number % 3].begin("s"))
        await gateways[number % 3].settled()
    assert [t.number for t in turns] == list(range(1, 10))
    assert len({t.epoch for t in turns}) == 1
    assert {t.durability for t in turns} == {"stored"}
    assert dict(turns[-1].told())["x-session-turn"] == "9"


async def test_without_the_store_it_goes_by_what_it_knows_and_says_so(store: Flaky, clock: Clock) -> None:
    found = Sessions("chat", store)
    await answer(found, "s", "best", "a")
    store.is_down = True
    clock.now += 10 * FRESH_S
    turn = await answer(found, "s", "best", "a")
    assert (turn.number, turn.durability, turn.replicas) == (2, "local", {"best": "a"})
    new = await answer(found, "new", "best", "b")
    assert (new.number, new.durability, new.replicas) == (1, "local", {})
    assert (await answer(found, "new", "best", "b")).replicas == {"best": "b"}
    assert found.unsaved == 2
    await found.close()


async def test_what_was_said_without_the_store_is_put_there_once_it_is_back(
    store: Flaky, clock: Clock
) -> None:
    found = Sessions("chat", store)
    store.is_down = True
    for _ in range(3):
        turn = await answer(found, "s", "best", "a")
    store.is_down = False
    await put_back(found)
    assert found.unsaved == 0
    later = await Sessions("chat", store).begin("s")
    assert (turn.epoch, turn.number, turn.durability) == (0, 3, "local")
    assert (later.number, later.replicas, later.durability) == (4, {"best": "a"}, "stored")
    assert later.epoch > 0


async def test_an_emptied_store_is_filled_again_and_the_session_s_epoch_ends(
    store: Flaky, clock: Clock
) -> None:
    causes: Counter[str] = Counter()
    found = Sessions("chat", store, count_epoch=lambda cause: causes.update([cause]))
    first = await answer(found, "s", "best", "a")
    await answer(found, "t", "best", "b")
    store.empty()
    clock.now += FRESH_S
    second = await answer(found, "s", "best", "a")
    assert second.epoch > first.epoch
    assert (second.number, second.replicas) == (2, {"best": "a"})
    assert causes == {"new": 2, "lost": 1}
    assert await home(Sessions("chat", store)) == {"best": "a"}


async def test_a_session_in_use_outlives_its_ttl(store: Flaky, clock: Clock) -> None:
    found = Sessions("chat", store)
    for _ in range(30):
        await answer(found, "s", "best", "a")
        clock.now += TTL_S / 10
    assert await home(Sessions("chat", store)) == {"best": "a"}


async def test_the_ones_used_least_recently_are_forgotten_and_found_in_the_store(
    store: Flaky, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KNOWN_SESSIONS", 3)
    found = Sessions("chat", store)
    for session in ("s", "t", "u"):
        await answer(found, session, "best", "a")
    await home(found, "s")
    await answer(found, "v", "best", "a")
    assert len(found) == 3
    turn = await found.begin("t")
    assert (turn.number, turn.replicas) == (2, {"best": "a"})


async def test_a_turn_that_no_replica_confirmed_is_told_again_until_one_does(
    store: Flaky, clock: Clock
) -> None:
    found = Sessions("chat", store)
    store.kept = "unconfirmed"
    turn = await found.begin("s")
    assert (turn.number, turn.durability, found.unsaved) == (1, "unconfirmed", 1)
    before = store.runs
    async with asyncio.timeout(5.0):
        while store.runs < before + 2:  # noqa: ASYNC110 - the store counts, and tells nobody
            await asyncio.sleep(0)
    assert found.unsaved == 1
    store.kept = "replicated"
    await put_back(found)
    assert found.unsaved == 0
    await found.close()


async def test_it_counts_what_is_bound_to_each_replica(store: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KNOWN_SESSIONS", 3)
    found = Sessions("chat", store)
    for session, replica in {"a": "r1", "b": "r1", "c": "r2"}.items():
        await answer(found, session, "primary", replica)
    assert found.bound("primary", ["r1", "r2", "r3"]) == {"r1": 2, "r2": 1}
    assert found.bound("small", ["r1", "r2"]) == {}
    await answer(found, "b", "primary", "r2", is_lost=True)
    assert found.bound("primary", ["r1", "r2"]) == {"r1": 1, "r2": 2}
    # The one that was asked for longest ago is forgotten.
    await answer(found, "d", "primary", "r3")
    assert found.bound("primary", ["r1", "r2", "r3"]) == {"r2": 2, "r3": 1}


async def test_what_the_store_says_of_a_binding_is_counted(store: Flaky, clock: Clock) -> None:
    await answer(Sessions("chat", store), "a", "primary", "r1")
    found = Sessions("chat", store)
    await found.begin("a")
    assert found.bound("primary", ["r1"]) == {"r1": 1}


class Silent(Flaky):
    """A store that says nothing before it is told how its calls end."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.may_answer = asyncio.Event()
        self.failing: set[str] = set()

    async def run(
        self, script: Script, group: str, key: str, arguments: Sequence[bytes | str], *, ttl_s: float
    ) -> Ran:
        if key in self.failing:
            raise StateStoreUnavailable("too slow")
        await self.may_answer.wait()
        return await super().run(script, group, key, arguments, ttl_s=ttl_s)


async def test_once_the_store_gave_one_no_answer_nobody_waits_on(clock: Clock) -> None:
    store = Silent(clock)
    found = Sessions("chat", store)
    waiting = [asyncio.create_task(found.begin(name)) for name in ("s", "t")]
    await asyncio.sleep(0)
    store.failing = {"u"}
    async with asyncio.timeout(5.0):
        await found.begin("u")
        turns = await asyncio.gather(*waiting)
    assert {turn.durability for turn in turns} == {"local"}
    store.may_answer.set()
    await found.settled()
    assert {turn.durability for turn in turns} == {"stored"}
    await found.close()


async def test_a_store_that_lately_gave_no_answer_is_hardly_waited_for(clock: Clock) -> None:
    store = Silent(clock)
    store.failing = {"u"}
    found = Sessions("chat", store)
    await found.begin("u")
    async with asyncio.timeout(5.0):
        turn = await found.begin("s")
    assert turn.durability == "local"
    clock.now += module.DOUBTED_S
    later = asyncio.create_task(found.begin("t"))
    done, _ = await asyncio.wait((later,), timeout=20 * module.DOUBTED_WAIT_S)
    assert not done
    store.may_answer.set()
    assert (await later).durability == "stored"
    await found.settled()
    assert turn.durability == "stored"
    await found.close()
