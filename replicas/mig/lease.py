"""Who holds which slice: one lease a slice in the state store, put only where there is none.

Ray counts slices but does not say which one a replica got; the lease does. While the store is away no slice is
leased anew, since two engines on one slice run each other out of memory; engines that run keep running.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from replicas.mig.discovery import Slice
from state_store.protocol import StateStore
from state_store.records import Record

SLICES = "slices"


@dataclass(frozen=True, slots=True)
class SliceRecord(Record):
    """The lease of one slice."""

    uuid: str
    profile: str
    node: str
    replica: str
    as_of: float
    """Unix time of the last renewal."""


class SliceLeases:
    """The leases of one node's replicas. Every verb raises `StateStoreUnavailable` while the store is away."""

    def __init__(self, store: StateStore, node: str, ttl_s: float, wall: Callable[[], float]) -> None:
        self._store, self._node, self._ttl_s, self._wall = store, node, ttl_s, wall

    async def acquire(self, replica: str, profile: str, slices: Sequence[Slice]) -> Slice | None:
        """A slice of that profile that nobody holds, now leased to the replica; None when all are taken.

        A replica that already holds one, having been restarted, gets the same one again.
        """
        candidates = [s for s in slices if s.profile == profile]
        held = await self.held()
        mine = next((s for s in candidates if s.uuid in held and held[s.uuid].replica == replica), None)
        if mine is not None and await self.renew(replica, mine):
            return mine
        for slice_ in candidates:
            if slice_.uuid not in held and await self._put(replica, slice_, only_if_absent=True):
                return slice_
        return None

    async def renew(self, replica: str, slice_: Slice) -> bool:
        """Extends the lease; False when it ran out and another replica has the slice: the engine must go."""
        if await self._put(replica, slice_, only_if_absent=True):
            return True
        raw = await self._store.get(SLICES, slice_.uuid)
        record = SliceRecord.from_bytes(raw) if raw is not None else None
        if record is not None and record.replica != replica:
            return False
        return await self._put(replica, slice_, only_if_absent=False)

    async def release(self, replica: str, slice_: Slice) -> None:
        """Gives the slice back; a lease that is another's by now stays."""
        raw = await self._store.get(SLICES, slice_.uuid)
        record = SliceRecord.from_bytes(raw) if raw is not None else None
        if record is not None and record.replica == replica:
            await self._store.delete(SLICES, slice_.uuid)

    async def held(self) -> dict[str, SliceRecord]:
        """All live leases, of every node, by the slice's UUID."""
        found = await self._store.scan(SLICES)
        records = {uuid: SliceRecord.from_bytes(raw) for uuid, raw in found.items()}
        return {uuid: record for uuid, record in records.items() if record is not None}

    async def _put(self, replica: str, slice_: Slice, *, only_if_absent: bool) -> bool:
        record = SliceRecord(slice_.uuid, slice_.profile, self._node, replica, self._wall())
        return await self._store.put(
            SLICES, slice_.uuid, record.to_bytes(), ttl_s=self._ttl_s, only_if_absent=only_if_absent
        )
