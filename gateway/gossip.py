"""Breakers told between gateways through the store: what one has learnt, the others need not pay for.

Gossip and no more: every gateway's own breaker decides, and without the store it does so alone. Probes are the exception
that needs agreement, so that a replica that comes back is not met by N probes of every gateway: who wants to probe takes
a short lease first.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import time
from uuid import uuid4

import pybreaker

from gateway.breakers import Breaker
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import Record

GROUP, LEASES = "breakers", "breaker_probes"
INTERVAL_S = 0.25
LEASE_S = 2.0
TTL_S = 60.0


@dataclass(frozen=True, slots=True)
class BreakerRecord(Record):
    """One gateway's word on one breaker. Times are Unix seconds."""

    gateway: str
    state: str
    reopen_at: float
    as_of: float


class BreakerGossip:
    """Tells this gateway's breakers and heeds the others', as long as it runs."""

    def __init__(self, store: StateStore, breakers: Callable[[], Iterable[Breaker]]) -> None:
        self._store, self._breakers = store, breakers
        self._me = uuid4().hex
        self._told: dict[str, str] = {}
        self._heeded: dict[str, float] = {}

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self.exchange(asyncio.get_running_loop().time(), time())
            except StateStoreUnavailable:
                continue

    async def exchange(self, now: float, wall: float) -> None:
        """One round: `now` is monotonic, `wall` the same moment in Unix time.

        Raises:
            StateStoreUnavailable
        """
        breakers = {b.name: b for b in self._breakers()}
        for breaker in breakers.values():
            await self._tell(breaker, now, wall)
            await self._lease_probe(breaker, now)
        for name, raw in (await self._store.scan(GROUP)).items():
            record = BreakerRecord.from_bytes(raw)
            if record is not None and record.gateway != self._me and name in breakers:
                self._heed(breakers[name], record, now, wall)

    async def _tell(self, breaker: Breaker, now: float, wall: float) -> None:
        """Says what changed. A breaker that never opened has nothing to say."""
        state = breaker.state
        if state == self._told.get(breaker.name, pybreaker.STATE_CLOSED):
            return
        self._told[breaker.name] = state
        record = BreakerRecord(self._me, state, wall + breaker.reopen_at - now, wall)
        await self._store.put(GROUP, breaker.name, record.to_bytes(), ttl_s=TTL_S)

    async def _lease_probe(self, breaker: Breaker, now: float) -> None:
        """An open breaker that is about to probe does so under a lease, or leaves it to whoever has that."""
        if breaker.state != pybreaker.STATE_OPEN or now + 2 * INTERVAL_S < breaker.reopen_at:
            return
        mine = self._me.encode()
        if await self._store.put(LEASES, breaker.name, mine, ttl_s=LEASE_S, only_if_absent=True):
            return
        if await self._store.get(LEASES, breaker.name) != mine:
            breaker.defer(now + 3 * INTERVAL_S)

    def _heed(self, breaker: Breaker, record: BreakerRecord, now: float, wall: float) -> None:
        if record.as_of <= self._heeded.get(breaker.name, 0.0):
            return
        self._heeded[breaker.name] = record.as_of
        if record.state == pybreaker.STATE_OPEN and record.reopen_at > wall:
            # No longer than its own gateway meant: whose clock is ahead would close a replica to all for as long.
            breaker.heed(now + min(record.reopen_at - wall, record.reopen_at - record.as_of), now)
            # What was heard is not told again as one's own.
            self._told[breaker.name] = breaker.state
        elif record.state == pybreaker.STATE_CLOSED:
            breaker.heed_closed(now)
