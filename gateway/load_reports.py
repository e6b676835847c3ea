"""Tells the scaler, through the store, what this gateway has of each tier whose replicas are started for it.

A tier without replicas is reported too: what asks for it is what wakes it.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import time

from gateway.beside import Beside
from gateway.fleet import Fleet
from gateway.sessions import Sessions
from gateway.tier import Tier
from replicas.autoscaling.load import LOADS, LoadRecord
from state_store.protocol import StateStore, StateStoreUnavailable

EVERY_S = 1.0
NOBODY_PER_S = 0.01
KEPT_S = 5.0
"""A gateway that ends stops counting then."""


class LoadReports(Beside):
    """Writes the loads as long as it runs."""

    def __init__(
        self, gateway: str, store: StateStore, models: Callable[[], Iterable[tuple[Fleet, Sessions]]]
    ) -> None:
        self._gateway, self._store, self._models = gateway, store, models

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            for fleet, sessions in self._models():
                for tier in [t for t in fleet.tiers.values() if t.spec.is_managed]:
                    record = load_of(self._gateway, fleet.model, tier, loop.time(), time())
                    await self._tell(replace(record, bound_sessions=sessions.bound(tier.name, tier.replicas)))
            await asyncio.sleep(EVERY_S)

    async def _tell(self, record: LoadRecord) -> None:
        key = f"{record.gateway}/{record.model}/{record.tier}"
        try:
            await self._store.put(LOADS, key, record.to_bytes(), ttl_s=KEPT_S)
        except StateStoreUnavailable:
            return


def load_of(gateway: str, model: str, tier: Tier, now: float, wall: float) -> LoadRecord:
    """What the gateway has of the tier; `now` is monotonic, `wall` the same moment in Unix time."""
    queued = len(tier.room)
    # Rates fade and never end: less than this is nobody, so that a tier that nobody asks may go to sleep.
    arrivals_per_s = tier.arrivals.per_s(now)
    arrivals_per_s = arrivals_per_s if arrivals_per_s >= NOBODY_PER_S else 0.0
    uses = [replica.kv_use for replica in tier.replicas.values() if replica.kv_use is not None]
    return LoadRecord(
        gateway=gateway,
        model=model,
        tier=tier.name,
        in_flight=sum(replica.in_flight for replica in tier.replicas.values()),
        queued=queued,
        arrivals_per_s=arrivals_per_s,
        service_s=tier.service_s,
        predicted_wait_s=tier.view(now).forecast.wait_s(queued, now, tier.room.promised) if queued else 0.0,
        kv_use=max(uses, default=0.0),
        as_of=wall,
    )
