"""Who of several tenants is next: start-time fair queueing (Goyal, Vin, Cheng) over places that cost the same.

Each tenant has a time of its own, which goes on by 1/weight with each place that it takes; the one whose time is earliest is
next, and within a tenant the earliest deadline. Who comes back after a pause starts at the present time: what was not
used is not saved up. All steps cost O(log n).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Generic, Protocol, TypeVar

Order = tuple[float, int]
"""A deadline (monotonic seconds), and the number of the arrival."""


class Entry(Protocol):
    """What waits. `is_gone` may become true at any time, and then stays so."""

    @property
    def tenant(self) -> str: ...
    @property
    def weight(self) -> float: ...
    @property
    def order(self) -> Order: ...
    @property
    def is_gone(self) -> bool: ...


T = TypeVar("T", bound=Entry)


@dataclass(slots=True)
class TenantTimes:
    """How far each tenant's time has come. Queues that share one share their fairness."""

    now: float = 0.0
    _ends: dict[str, float] = field(default_factory=dict)

    def start(self, tenant: str) -> float:
        """The tenant's own time."""
        return max(self._ends.get(tenant, 0.0), self.now)

    def end(self, tenant: str) -> float:
        return self._ends.get(tenant, 0.0)

    def charge(self, tenant: str, start: float, weight: float) -> None:
        """The tenant took a place, from `start` on."""
        self.now = max(self.now, start)
        self._ends[tenant] = start + 1.0 / weight


@dataclass(frozen=True, slots=True)
class Next(Generic[T]):
    """Who is next, and at which time of its tenant."""

    start: float
    entry: T

    @property
    def order(self) -> tuple[float, Order]:
        return self.start, self.entry.order


class FairQueue(Generic[T]):
    """Entries by their tenants' times, then by their order. Those that are gone are dropped as they come up, or when
    they become too many."""

    def __init__(self, times: TenantTimes) -> None:
        self._times = times
        self._lines: dict[str, list[tuple[Order, T]]] = {}
        self._tenants: list[tuple[float, int, str]] = []
        """A heap: each tenant that has a line, by its time when it was put there, which may have gone on since."""
        self._sequence = count()
        self._size = 0
        self._swept_at = 16

    def __bool__(self) -> bool:
        return bool(self._lines)

    def push(self, entry: T) -> None:
        """Another one."""
        self._sweep()
        self._size += 1
        line = self._lines.get(entry.tenant)
        if line is None:
            line = self._lines[entry.tenant] = []
            self._enqueue(entry.tenant)
        heappush(line, (entry.order, entry))

    def first(self, fits: Callable[[T], bool]) -> Next[T] | None:
        """The next one that fits. Costs O(log n) for each that comes before it and does not fit."""
        passed: list[tuple[float, int, str]] = []
        found: Next[T] | None = None
        while found is None and self._tenants:
            start, _, tenant = self._tenants[0]
            if self._times.end(tenant) > start:
                heapreplace(self._tenants, (self._times.end(tenant), next(self._sequence), tenant))
                continue
            entry = self._first_of(self._lines[tenant], fits)
            if entry is not None:
                found = Next(start, entry)
            elif self._lines[tenant]:
                passed.append(heappop(self._tenants))
            else:
                heappop(self._tenants)
                del self._lines[tenant]
        for item in passed:
            heappush(self._tenants, item)
        return found

    def _first_of(self, line: list[tuple[Order, T]], fits: Callable[[T], bool]) -> T | None:
        passed: list[tuple[Order, T]] = []
        found: T | None = None
        while line:
            entry = line[0][1]
            if not entry.is_gone and fits(entry):
                found = entry
                break
            item = heappop(line)
            if entry.is_gone:
                self._size -= 1
            else:
                passed.append(item)
        for item in passed:
            heappush(line, item)
        return found

    def _enqueue(self, tenant: str) -> None:
        heappush(self._tenants, (self._times.start(tenant), next(self._sequence), tenant))

    def _sweep(self) -> None:
        """Drops all that are gone, each time the queue has doubled since."""
        if self._size < self._swept_at:
            return
        for tenant, line in list(self._lines.items()):
            line[:] = [item for item in line if not item[1].is_gone]
            heapify(line)
            if not line:
                del self._lines[tenant]
        self._tenants = [item for item in self._tenants if item[2] in self._lines]
        heapify(self._tenants)
        self._size = sum(map(len, self._lines.values()))
        self._swept_at = max(16, 2 * self._size)
