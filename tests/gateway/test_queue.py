"""The waiting room: who gets a slot, and that none is ever lost."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.queue import WaitingRoom

FAR_S = 3600.0


@dataclass
class Replica:
    replica: str
    slots: int | None = 1
    in_flight: int = 0

    @property
    def is_free(self) -> bool:
        return self.slots is None or self.in_flight < self.slots


def release(room: WaitingRoom, replica: Replica) -> None:
    replica.in_flight -= 1
    room.offer(replica, True)


def waiting(
    room: WaitingRoom,
    rank: int = 1,
    deadline: float = 9.0,
    wants: str = "",
    shuns: str = "",
    within_s: float = FAR_S,
) -> "asyncio.Task[None]":
    until = asyncio.get_running_loop().time() + within_s
    return asyncio.create_task(room.wait(rank, deadline, wants, until, frozenset(shuns.split())))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_freed_slot_is_promised_before_anyone_sees_it_free() -> None:
    room, replica = WaitingRoom(), Replica("a", in_flight=1)
    waiter = waiting(room)
    await settle()
    release(room, replica)
    assert not replica.is_free
    assert room.promised == 1
    await waiter
    # It decides in the same step, so from here on the slot is its own to take.
    assert replica.in_flight == 0
    assert room.promised == 0
    assert len(room) == 0


async def test_by_priority_then_deadline_then_arrival() -> None:
    room, replica, order = WaitingRoom(), Replica("a", in_flight=1), []

    async def client(name: str, rank: int, deadline: float) -> None:
        await room.wait(rank, deadline, "", asyncio.get_running_loop().time() + FAR_S)
        order.append(name)
        release_later = asyncio.get_running_loop().call_soon
        replica.in_flight += 1
        release_later(release, room, replica)

    arrivals = [
        ("sheddable", 2, 1.0),
        ("late", 1, 8.0),
        ("soon", 1, 5.0),
        ("soon, second", 1, 5.0),
        ("critical", 0, 9.0),
    ]
    tasks = [asyncio.create_task(client(*a)) for a in arrivals]
    await settle()
    release(room, replica)
    await asyncio.gather(*tasks)
    assert order == ["critical", "soon", "soon, second", "late", "sheddable"]


async def test_counts_say_how_many_a_newcomer_finds_before_it() -> None:
    room = WaitingRoom()
    tasks = [waiting(room, rank) for rank in (0, 1, 1, 2, 2, 2)]
    await settle()
    assert (room.counts(), room.ahead(), len(room)) == ((1, 2, 3), (1, 3, 6), 6)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (room.counts(), len(room)) == ((0, 0, 0), 0)


async def test_one_who_wants_a_certain_replica_gets_no_other() -> None:
    room, a, b = WaitingRoom(), Replica("a", in_flight=1), Replica("b", in_flight=1)
    picky, easy = waiting(room, rank=0, wants="b"), waiting(room, rank=2)
    await settle()
    release(room, a)
    await settle()
    assert (picky.done(), easy.done()) == (False, True)
    release(room, b)
    await asyncio.wait_for(picky, 1)


async def test_a_replica_that_failed_a_request_is_not_promised_to_it() -> None:
    room, a = WaitingRoom(), Replica("a", in_flight=1)
    failed, other = waiting(room, rank=0, shuns="a"), waiting(room, rank=2)
    await settle()
    release(room, a)
    await settle()
    assert (failed.done(), other.done()) == (False, True)
    failed.cancel()


async def test_it_ends_by_its_time() -> None:
    room = WaitingRoom()
    await asyncio.wait_for(waiting(room, within_s=0.01), 1)
    assert len(room) == 0


async def test_a_slot_freed_just_as_somebody_s_time_is_up_goes_to_the_next() -> None:
    room, a = WaitingRoom(), Replica("a", in_flight=1)
    first, second = waiting(room, rank=0), waiting(room, rank=1)
    await settle()
    room.poke()
    third = waiting(room, rank=2)
    # Not resumed yet, but woken: they will decide by themselves.
    release(room, a)
    assert a.is_free
    await asyncio.gather(first, second)
    third.cancel()


async def test_poke_wakes_everybody_without_promising_anything() -> None:
    room, a = WaitingRoom(), Replica("a", in_flight=1)
    tasks = [waiting(room, rank) for rank in (0, 1, 2)]
    await settle()
    room.poke()
    await asyncio.wait_for(asyncio.gather(*tasks), 1)
    assert (a.in_flight, len(room)) == (1, 0)


async def test_an_unusable_replica_is_offered_to_nobody() -> None:
    room, a = WaitingRoom(), Replica("a")
    waiter = waiting(room)
    await settle()
    room.offer(a, False)
    await settle()
    assert not waiter.done()
    assert a.in_flight == 0
    waiter.cancel()


async def test_a_replica_with_several_free_slots_serves_as_many() -> None:
    room, a = WaitingRoom(), Replica("a", slots=3, in_flight=1)
    tasks = [waiting(room) for _ in range(3)]
    await settle()
    room.offer(a, True)
    assert a.in_flight == 3
    await settle()
    assert [t.done() for t in tasks] == [True, True, False]
    tasks[2].cancel()


async def test_a_client_that_leaves_before_its_promise() -> None:
    room, a = WaitingRoom(), Replica("a", in_flight=1)
    leaver, stayer = waiting(room, rank=0), waiting(room, rank=1)
    await settle()
    leaver.cancel()
    release(room, a)
    await asyncio.wait_for(stayer, 1)
    assert (leaver.cancelled(), a.in_flight, len(room)) == (True, 0, 0)


async def test_a_promise_to_a_client_that_left_goes_to_the_next() -> None:
    room, a = WaitingRoom(), Replica("a", in_flight=1)
    leaver, stayer = waiting(room, rank=0), waiting(room, rank=1)
    await settle()
    release(room, a)
    leaver.cancel()  # promised, not resumed
    await asyncio.wait_for(stayer, 1)
    assert (leaver.cancelled(), a.in_flight, len(room)) == (True, 0, 0)


async def test_a_promise_to_the_last_client_that_left_is_given_back() -> None:
    room, a = WaitingRoom(), Replica("a", in_flight=1)
    leaver = waiting(room)
    await settle()
    release(room, a)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert (a.in_flight, room.counts()) == (0, (0, 0, 0))


class Crowd:
    """Clients that wait, hold a slot, and leave, over two replicas."""

    def __init__(self) -> None:
        self.room = WaitingRoom()
        self.replicas = [Replica("a", 2), Replica("b", 1)]
        self.clients: list[asyncio.Task[None]] = []
        self.done: list[asyncio.Event] = []

    def arrive(self, rank: int, choice: int) -> None:
        wants, shuns = [("", ""), ("a", ""), ("b", ""), ("", "a"), ("", "b")][choice]
        self.done.append(asyncio.Event())
        self.clients.append(asyncio.create_task(self._client(rank, wants, shuns, self.done[-1])))

    async def _client(self, rank: int, wants: str, shuns: str, done: asyncio.Event) -> None:
        until = asyncio.get_running_loop().time() + FAR_S
        fit = [r for r in self.replicas if wants in ("", r.replica) and r.replica != shuns]
        while not (free := [r for r in fit if r.is_free]):
            await self.room.wait(rank, 0.0, wants, until, frozenset({shuns}))
        free[0].in_flight += 1
        try:
            await done.wait()
        finally:
            release(self.room, free[0])
            # As a tier does: somebody may have taken another slot than the one it was promised.
            for replica in self.replicas:
                self.room.offer(replica, True)

    def finish(self, which: int) -> None:
        if self.done:
            self.done[which % len(self.done)].set()

    def leave(self, which: int) -> None:
        if self.clients:
            self.clients[which % len(self.clients)].cancel()

    def check(self) -> None:
        assert all(0 <= r.in_flight <= (r.slots or 0) for r in self.replicas)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(0, 2), st.integers(0, 4)),
        st.tuples(st.sampled_from(["finish", "leave"]), st.integers(0, 30), st.just(0)),
        st.tuples(st.sampled_from(["tick", "poke"]), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_after_any_mix_everybody_was_served_and_all_counts_are_zero(
    steps: list[tuple[str, int, int]],
) -> None:
    async def run() -> None:
        crowd = Crowd()
        acts: dict[str, Callable[[int, int], None]] = {
            "arrive": crowd.arrive,
            "finish": lambda n, _: crowd.finish(n),
            "leave": lambda n, _: crowd.leave(n),
            "poke": lambda *_: crowd.room.poke(),
        }
        for name, a, b in steps:
            if name == "tick":
                await asyncio.sleep(0)
            else:
                acts[name](a, b)
            crowd.check()
        for done in crowd.done:
            done.set()
        # A lost slot would leave somebody waiting for an hour.
        found = await asyncio.wait_for(asyncio.gather(*crowd.clients, return_exceptions=True), 5)
        assert all(f is None or isinstance(f, asyncio.CancelledError) for f in found)
        assert [r.in_flight for r in crowd.replicas] == [0, 0]
        assert (len(crowd.room), crowd.room.counts()) == (0, (0, 0, 0))

    asyncio.run(run())
