"""Reads the engines' own metrics: what only they know, above all how full their KV caches are.

An engine that gives none is asked less often. What was read is dated, so that a stale reading moves nobody.
"""

import asyncio
from collections.abc import Iterable

from gateway.fleet import Fleet
from gateway.replica import Replica
from replicas.engine_load import read_load
from replicas.probe import open_probe_session

EVERY_S = 2.0
SILENT_EVERY_S = 30.0
"""Of an engine that gives no metrics."""
TIMEOUT_S = 1.0


class EngineWatch:
    """Keeps what one fleet's engines say of themselves current for as long as it runs."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._due: dict[Replica, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="engine-watch")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.gather(*(self._read(replica, loop) for replica in self._ready(loop.time())))
            await asyncio.sleep(EVERY_S)

    def _ready(self, now: float) -> Iterable[Replica]:
        there = [r for tier in self._fleet.tiers.values() for r in tier.replicas.values()]
        self._due = {replica: self._due.get(replica, 0.0) for replica in there}
        return [r for r in there if r.health.is_ready and now >= self._due[r]]

    async def _read(self, replica: Replica, loop: asyncio.AbstractEventLoop) -> None:
        # A session each, as the replicas' probes have: one that hangs holds up no other.
        async with open_probe_session() as session:
            load = await read_load(
                session, replica.place.url, api_key=replica.place.api_key, timeout_s=TIMEOUT_S
            )
        if load is None:
            self._due[replica] = loop.time() + SILENT_EVERY_S
            return
        replica.kv_use, replica.kv_as_of = load.kv_use, loop.time()
