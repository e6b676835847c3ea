"""The waiting room of a tier: requests that queue for a slot, by priority, then deadline, then arrival.

A slot that comes free is promised to the first who can use it before anyone else sees it free; a place in the room dies
with its client, and a promise that nobody takes goes to the next.
"""

import asyncio
from bisect import insort
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Slot(Protocol):
    """What a waiter gets: a replica with a count of places that are taken."""

    replica: str
    in_flight: int

    @property
    def slots(self) -> int | None: ...


def _anybody(rank: int) -> bool:
    return True


class _Waiter:
    __slots__ = ("future", "key", "promised", "shuns", "wants")

    def __init__(
        self, key: tuple[int, float, int], wants: str, shuns: frozenset[str], future: asyncio.Future[None]
    ) -> None:
        self.key, self.wants, self.shuns, self.future = key, wants, shuns, future
        self.promised: Slot | None = None

    def can_use(self, slot: Slot) -> bool:
        """Whether the slot would do. One that has been woken decides by itself: what it was promised could be left lying."""
        return self.wants in ("", slot.replica) and slot.replica not in self.shuns and not self.future.done()

    def __lt__(self, other: "_Waiter") -> bool:
        return self.key < other.key


class WaitingRoom:
    """Waiters of one tier, in order."""

    def __init__(self) -> None:
        self._waiters: list[_Waiter] = []
        self._counts = [0, 0, 0]
        self._sequence = count()

    def __len__(self) -> int:
        return len(self._waiters)

    def counts(self) -> tuple[int, int, int]:
        """Waiters by rank: critical, standard, sheddable."""
        critical, standard, sheddable = self._counts
        return critical, standard, sheddable

    def ahead(self) -> tuple[int, int, int]:
        """How many a newcomer of each rank would find before it."""
        critical, standard, sheddable = self._counts
        return critical, critical + standard, critical + standard + sheddable

    async def wait(
        self, rank: int, deadline: float, wants: str, until: float, shuns: frozenset[str] = frozenset()
    ) -> bool:
        """Waits for a promise (then True), a poke, or `until` (monotonic seconds).

        What was promised is the caller's in the step in which this returns, and free afterwards.

        Args:
            wants: the one replica that will do, or empty.
            shuns: replicas that will not do.
        """
        loop = asyncio.get_running_loop()
        waiter = _Waiter((rank, deadline, next(self._sequence)), wants, shuns, loop.create_future())
        insort(self._waiters, waiter)
        self._counts[rank] += 1
        timer = loop.call_at(until, _wake, waiter.future)
        try:
            await waiter.future
        except asyncio.CancelledError:
            # The promise must not leave with its client.
            self._withdraw(waiter)
            if waiter.promised is not None:
                self._return(waiter.promised, offer=True)
            raise
        finally:
            timer.cancel()
        self._withdraw(waiter)
        if waiter.promised is None:
            return False
        self._return(waiter.promised, offer=False)
        return True

    def _withdraw(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self._counts[waiter.key[0]] -= 1

    def _return(self, slot: Slot, offer: bool) -> None:
        slot.in_flight -= 1
        if offer:
            self.offer(slot, True)

    def offer(self, slot: Slot, is_usable: bool, may_take: Callable[[int], bool] = _anybody) -> None:
        """Promises the free places of a replica to those who wait and who, by their rank, may have them."""
        while is_usable and self._waiters and (slot.slots is None or slot.in_flight < slot.slots):
            waiter = next((w for w in self._waiters if w.can_use(slot)), None)
            if waiter is None or not may_take(waiter.key[0]):
                return
            self._withdraw(waiter)
            slot.in_flight += 1
            waiter.promised = slot
            _wake(waiter.future)

    def poke(self) -> None:
        """The tier changed: everybody decides again."""
        for waiter in self._waiters:
            _wake(waiter.future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
