"""The waiting room of a tier: requests that queue for a slot, by priority, then fair shares of their tenants, then deadline.

A slot that comes free is promised to the first who can use it before anyone else sees it free; a place in the room dies
with its client, and a promise that nobody takes goes to the next.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Protocol

from gateway.policy.fair_queue import FairQueue, Next, Order, TenantTimes
from gateway.policy.tenants import Tenants

RANKS = 3


class Slot(Protocol):
    """What a waiter gets: a replica with a count of places that are taken."""

    replica: str
    in_flight: int

    @property
    def slots(self) -> int | None: ...


def _anybody(rank: int) -> bool:
    return True


class _Waiter:
    """One who waits. Whoever has been woken decides by itself: what it was promised then could be left lying."""

    __slots__ = ("future", "is_counted", "order", "promised", "rank", "shuns", "tenant", "weight")

    def __init__(
        self,
        rank: int,
        order: Order,
        tenant: str,
        weight: float,
        shuns: frozenset[str],
        future: asyncio.Future[None],
    ) -> None:
        self.rank, self.order, self.shuns, self.future = rank, order, shuns, future
        self.tenant, self.weight = tenant, weight
        self.promised: Slot | None = None
        self.is_counted = True

    @property
    def is_gone(self) -> bool:
        return self.future.done()


class _Rank:
    """The waiters of one priority: those for whom any replica will do, and those that want one alone."""

    def __init__(self) -> None:
        self._times = TenantTimes()
        self._queues: dict[str, FairQueue[_Waiter]] = {}
        """By the replica that is wanted; empty for any."""
        self._tenants = Tenants()
        self.count = 0

    def enter(self, waiter: _Waiter, wants: str, now: float) -> None:
        queue = self._queues.get(wants)
        if queue is None:
            queue = self._queues[wants] = FairQueue(self._times)
        queue.push(waiter)
        self.count += 1
        self._tenants.enter(waiter.tenant, waiter.weight, now)

    def leave(self, waiter: _Waiter) -> None:
        self.count -= 1
        self._tenants.leave(waiter.tenant)

    def first(self, slot: Slot) -> Next[_Waiter] | None:
        """Who is next for this slot."""
        found: Next[_Waiter] | None = None
        for wants in ("", slot.replica):
            queue = self._queues.get(wants)
            if queue is None:
                continue
            other = queue.first(lambda waiter: slot.replica not in waiter.shuns)
            if not queue:
                del self._queues[wants]
            if other is not None and (found is None or other.order < found.order):
                found = other
        return found

    def charge(self, chosen: Next[_Waiter]) -> None:
        self._times.charge(chosen.entry.tenant, chosen.start, chosen.entry.weight)

    def ahead_of(self, tenant: str, weight: float, left_s: float, now: float) -> int:
        return self._tenants.ahead_of(tenant, weight, left_s, now)


class WaitingRoom:
    """Waiters of one tier, in order."""

    def __init__(self) -> None:
        self._ranks = [_Rank() for _ in range(RANKS)]
        self._waiting: set[_Waiter] = set()
        self._ahead = (0, 0, 0)
        self._promised = 0
        self._sequence = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def counts(self) -> tuple[int, int, int]:
        """Waiters by rank: critical, standard, sheddable."""
        critical, standard, sheddable = self._ranks
        return critical.count, standard.count, sheddable.count

    @property
    def promised(self) -> int:
        """Slots that are somebody's who has not taken them yet."""
        return self._promised

    def ahead(self) -> tuple[int, int, int]:
        """How many of the same or a higher rank wait, for each rank."""
        return self._ahead

    def ahead_of(self, rank: int, tenant: str, weight: float, left_s: float, now: float) -> int:
        """How many go before a newcomer of that rank and tenant that waits `left_s`: those that wait already, and those of
        other tenants that come in that time and have a better right."""
        above = sum(r.count for r in self._ranks[:rank])
        return above + self._ranks[rank].ahead_of(tenant, weight, left_s, now)

    async def wait(
        self,
        rank: int,
        deadline: float,
        wants: str,
        until: float,
        shuns: frozenset[str] = frozenset(),
        tenant: str = "",
        weight: float = 1.0,
    ) -> bool:
        """Waits for a promise (then True), a poke, or `until` (monotonic seconds).

        What was promised is the caller's in the step in which this returns, and free afterwards.

        Args:
            wants: the one replica that will do, or empty.
            shuns: replicas that will not do.
            weight: of the tenant's share among the tenants of its rank.
        """
        loop = asyncio.get_running_loop()
        order = deadline, next(self._sequence)
        waiter = _Waiter(rank, order, tenant, weight, shuns, loop.create_future())
        self._ranks[rank].enter(waiter, wants, loop.time())
        self._waiting.add(waiter)
        self._count()
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
        if waiter.is_counted:
            waiter.is_counted = False
            self._waiting.discard(waiter)
            self._ranks[waiter.rank].leave(waiter)
            self._count()

    def _count(self) -> None:
        critical, standard, sheddable = self.counts()
        self._ahead = critical, critical + standard, critical + standard + sheddable

    def _return(self, slot: Slot, offer: bool) -> None:
        slot.in_flight -= 1
        self._promised -= 1
        if offer:
            self.offer(slot, True)

    def offer(self, slot: Slot, is_usable: bool, may_take: Callable[[int], bool] = _anybody) -> None:
        """Promises the free places of a replica to those who wait and who, by their rank, may have them."""
        while is_usable and self._waiting and (slot.slots is None or slot.in_flight < slot.slots):
            chosen = next((c for r in self._ranks if r.count and (c := r.first(slot)) is not None), None)
            if chosen is None or not may_take(chosen.entry.rank):
                return
            waiter = chosen.entry
            self._ranks[waiter.rank].charge(chosen)
            self._withdraw(waiter)
            slot.in_flight += 1
            self._promised += 1
            waiter.promised = slot
            _wake(waiter.future)

    def poke(self) -> None:
        """The tier changed: everybody decides again."""
        for waiter in sorted(self._waiting, key=lambda waiter: (waiter.rank, waiter.order)):
            _wake(waiter.future)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
