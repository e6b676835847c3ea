"""One replica's hold on a slice: taken before its engine starts, renewed while it runs, given back at its end."""

import asyncio
import logging
from collections.abc import Callable
from time import time

from replicas.mig.discovery import Gpu, NvmlUnavailable, Slice, discover, loss_of
from replicas.mig.lease import SliceLeases
from state_store.protocol import StateStore, StateStoreUnavailable

log = logging.getLogger(__name__)

LEASE_S = 30.0
RENEW_S = 5.0
ASK_AGAIN_S = 1.0

Discover = Callable[[], tuple[Gpu, ...]]


class SliceHold:
    """A slice of one profile on this node, for one replica."""

    def __init__(
        self, store: StateStore, node: str, replica: str, profile: str, look: Discover = discover
    ) -> None:
        self._leases = SliceLeases(store, node, LEASE_S, time)
        self._replica, self._profile, self._look = replica, profile, look
        self._held: Slice | None = None

    async def take(self) -> Slice:
        """Waits for a slice that nobody holds; Ray has counted one for this replica, so its holder is about to go."""
        while self._held is None:
            try:
                slices = [s for gpu in await asyncio.to_thread(self._look) for s in gpu.slices]
                self._held = await self._leases.acquire(self._replica, self._profile, slices)
            except (StateStoreUnavailable, NvmlUnavailable) as error:
                log.warning("%s waits for a %s: %s", self._replica, self._profile, error)
            if self._held is None:
                await asyncio.sleep(ASK_AGAIN_S)
        return self._held

    async def keep(self) -> str:
        """Renews the lease until the slice is lost; why it is. A store or a driver that does not answer loses nothing."""
        assert self._held is not None
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                if not await self._leases.renew(self._replica, self._held):
                    return f"{self._profile} {self._held.uuid} is leased to another replica"
                if (why := loss_of(self._held, await asyncio.to_thread(self._look))) is not None:
                    return why
            except (StateStoreUnavailable, NvmlUnavailable):
                continue

    async def release(self) -> None:
        """Gives the slice back; without the store, the lease's end does."""
        if self._held is None:
            return
        try:
            await self._leases.release(self._replica, self._held)
        except StateStoreUnavailable:
            return
