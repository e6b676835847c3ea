"""A replica's entry in the state store: a lease that lasts three heartbeats and is renewed by each."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import REPLICAS, ReplicaRecord

LEASE_HEARTBEATS = 3


class Registration:
    """Keeps the store's record of a replica current while `keep` runs; a store that is away is retried."""

    def __init__(self, store: StateStore, record: Callable[[], ReplicaRecord]) -> None:
        self._store = store
        self._record = record
        self._changed = asyncio.Event()
        self.is_in_store = False
        """Whether the last heartbeat reached the store."""

    def announce(self) -> None:
        """Has the record written at once rather than at the next heartbeat."""
        self._changed.set()

    async def keep(self) -> None:
        """Renews the lease until cancelled."""
        while True:
            self._changed.clear()
            record = self._record()
            self.is_in_store = await self._put(record)
            # After a miss the lease has less to lose by haste than by waiting.
            wait_s = record.heartbeat_s if self.is_in_store else record.heartbeat_s / 4
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)

    async def withdraw(self) -> None:
        """Removes the record. Where the store is away, the lease's end does it."""
        with suppress(StateStoreUnavailable):
            await self._store.delete(REPLICAS, self._record().replica)
        self.is_in_store = False

    async def _put(self, record: ReplicaRecord) -> bool:
        ttl_s = LEASE_HEARTBEATS * record.heartbeat_s
        try:
            return await self._store.put(REPLICAS, record.replica, record.to_bytes(), ttl_s=ttl_s)
        except StateStoreUnavailable:
            return False
