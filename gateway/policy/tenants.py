"""Which tenants wait or waited lately, how often each of them comes, and so how far back a newcomer of one stands."""

from collections import OrderedDict
from dataclasses import dataclass
from math import exp

FADE_S = 2.0
"""How long an arrival counts for what a tenant's rate is; after three times as long without one it is forgotten."""


@dataclass(slots=True)
class _Tenant:
    weight: float
    waiting: int = 0
    arrivals: float = 0.0
    """Faded, as of `as_of`."""
    as_of: float = 0.0


class Tenants:
    """Those of one priority, in the order of their last arrival. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()
        self._weight = 0.0
        self._waiting = 0
        self._arrivals = 0.0
        self._as_of = 0.0

    def enter(self, name: str, weight: float, now: float) -> None:
        """One more waits."""
        self._forget(now)
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = _Tenant(weight, as_of=now)
            self._weight += weight
        self._tenants.move_to_end(name)
        tenant.waiting += 1
        self._waiting += 1
        tenant.arrivals, tenant.as_of = _faded(tenant.arrivals, tenant.as_of, now) + 1.0, now
        self._arrivals, self._as_of = _faded(self._arrivals, self._as_of, now) + 1.0, now

    def leave(self, name: str) -> None:
        """One fewer waits."""
        self._tenants[name].waiting -= 1
        self._waiting -= 1

    def ahead_of(self, name: str, weight: float, left_s: float, now: float) -> int:
        """How many go before a newcomer that waits `left_s`: its tenant's own, and of the others' as many as wait or will
        come, up to the part that their weights give them a right to."""
        self._forget(now)
        tenant = self._tenants.get(name)
        own, arrivals, known = 0, 0.0, 0.0
        if tenant is not None:
            own, known = tenant.waiting, tenant.weight
            arrivals = _faded(tenant.arrivals, tenant.as_of, now)
        others_per_s = (_faded(self._arrivals, self._as_of, now) - arrivals) / FADE_S
        others = self._waiting - own + max(0.0, others_per_s) * left_s
        return own + int(min(others, (own + 1) * (self._weight - known) / weight))

    def _forget(self, now: float) -> None:
        while self._tenants:
            name, tenant = next(iter(self._tenants.items()))
            if now - tenant.as_of < 3.0 * FADE_S:
                return
            if tenant.waiting:
                # It still counts: as one that has just come.
                tenant.arrivals, tenant.as_of = _faded(tenant.arrivals, tenant.as_of, now), now
                self._tenants.move_to_end(name)
                continue
            del self._tenants[name]
            self._weight -= tenant.weight


def _faded(count: float, as_of: float, now: float) -> float:
    return count * exp((as_of - now) / FADE_S)
