"""Tells the state store what tenants used through this gateway, and claims what they may use of the rest."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from gateway.beside import Beside
from gateway.callers import Callers
from gateway.policy.quota import Bucket
from state_store.buckets import Draw, draw
from state_store.patience import patiently
from state_store.protocol import StateStore, StateStoreUnavailable

GROUP = "quotas"
TICK_S = 0.1
"""Between two exchanges while something is used."""
IDLE_S = 1.0
"""The same while nothing is."""


class QuotaExchange(Beside):
    """Keeps the quotas of one gateway in step with those of the others, as long as it runs."""

    def __init__(self, store: StateStore, callers: Callable[[], Callers]) -> None:
        self._store, self._callers = store, callers
        self._me = uuid4().hex
        self._all_due_at = 0.0

    async def join(self) -> None:
        """The first exchange, if the store is there, and all that follow."""
        await self._try()
        self.start()

    async def stop(self) -> None:
        """Tells what is left to tell."""
        await super().stop()
        if self.has_begun:
            with suppress(StateStoreUnavailable):
                await patiently(self.exchange)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            await self._try()

    async def _try(self) -> None:
        try:
            await self.exchange()
        except StateStoreUnavailable:
            return

    async def exchange(self) -> None:
        """One round: the buckets that were used, and once a second all of them.

        Raises:
            StateStoreUnavailable
        """
        now = asyncio.get_running_loop().time()
        is_all_due = now >= self._all_due_at
        for name, bucket in list(self._callers().buckets()):
            if is_all_due or bucket.used or bucket.wanted:
                await self._tell(name, bucket)
        if is_all_due:
            self._all_due_at = now + IDLE_S

    async def _tell(self, name: str, bucket: Bucket) -> None:
        time = asyncio.get_running_loop().time
        bucket.refill(time())
        used = bucket.used
        told = Draw(used, bucket.wanted, bucket.size, bucket.per_s, bucket.level, bucket.sharers)
        drawn = await draw(self._store, GROUP, name, self._me, told)
        bucket.told(used, drawn.level, drawn.claim, drawn.sharers, time())
