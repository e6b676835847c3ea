"""Reads the engines' own metrics: what only they know, how full their KV caches are and what others run on them.

Each engine is read by itself, so that one that hangs holds up no other; one that gives no metrics is asked less often. What
was read is dated, and what is stale counts for nothing: a stale reading is not a full replica.
"""

import asyncio

import aiohttp

from gateway.fleet import Fleet
from gateway.policy.elsewhere import Elsewhere, heard
from gateway.replica import Replica
from gateway.specs import EngineMetricsSpec
from gateway.tier import Tier
from replicas.client_tls import NO_FILES, ClientTls, TlsFiles
from replicas.engine_load import read_load
from replicas.probe import open_probe_session

SILENT_EVERY_S = 30.0
"""Of an engine that gives no metrics."""
TIMEOUT_S = 1.0
READS_PER_S = 100.0
"""Of all engines together, at most: each costs about a millisecond."""
IDLE_S = 1.0


class EngineWatch:
    """Keeps what one fleet's engines say of themselves current for as long as it runs."""

    def __init__(self, fleet: Fleet, spec: EngineMetricsSpec) -> None:
        self._fleet, self.spec = fleet, spec
        self._reads: dict[Replica, asyncio.Task[None]] = {}
        self._not_before: dict[Replica, float] = {}
        self._as_of: dict[Replica, float] = {}
        """Of readings that count."""
        self._told: set[Replica] = set()
        """Those that have given metrics at all."""
        self._sessions: dict[TlsFiles, aiohttp.ClientSession] = {}
        self._tls: dict[TlsFiles, ClientTls | None] = {}
        """By the authorities that its replicas' certificates are of."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="engine-watch")

    async def stop(self) -> None:
        tasks = [t for t in (self._task, *self._reads.values()) if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        time = asyncio.get_running_loop().time
        try:
            while True:
                there = {r: t for t in self._fleet.tiers.values() for r in t.replicas.values()}
                self._forget(there)
                for replica, tier in there.items():
                    self._look(tier, replica, time())
                wanted_s = self.spec.interval_s or IDLE_S
                await asyncio.sleep(max(wanted_s, len(there) / READS_PER_S))
        finally:
            await asyncio.gather(*(session.close() for session in self._sessions.values()))

    def _session(self, files: TlsFiles) -> aiohttp.ClientSession:
        if files not in self._sessions:
            self._tls[files] = None if files == NO_FILES else ClientTls(files)
            self._sessions[files] = open_probe_session(self._tls[files])
        if (tls := self._tls[files]) is not None:
            tls.refresh()
        return self._sessions[files]

    def _forget(self, there: dict[Replica, Tier]) -> None:
        for known in (self._not_before, self._as_of):
            for replica in [r for r in known if r not in there]:
                del known[replica]
        self._told.intersection_update(there)
        for replica in [r for r in self._reads if r not in there]:
            self._reads.pop(replica).cancel()

    def _look(self, tier: Tier, replica: Replica, now: float) -> None:
        """Begins to read a replica, unless the last reading is not over yet; and ends what a stale one said."""
        if now - self._as_of.get(replica, now) > self.spec.stale_after_s:
            del self._as_of[replica]
            self._hear(tier, replica, Elsewhere(), now)
        reading = self._reads.get(replica)
        is_due = self.spec.interval_s > 0 and now >= self._not_before.get(replica, 0.0)
        if is_due and replica.health.is_ready and (reading is None or reading.done()):
            read = self._read(tier, replica)
            self._reads[replica] = asyncio.create_task(read, name="engine-read")

    async def _read(self, tier: Tier, replica: Replica) -> None:
        time = asyncio.get_running_loop().time
        mine = replica.mine
        load = await read_load(
            self._session(replica.place.tls),
            replica.place.url,
            api_key=replica.place.api_key,
            timeout_s=TIMEOUT_S,
        )
        now = time()
        if load is None:
            self._not_before[replica] = now + (0.0 if replica in self._told else SILENT_EVERY_S)
            return
        self._told.add(replica)
        replica.kv_use, replica.kv_as_of, replica.restoring = load.kv_use, now, load.restoring
        self._as_of[replica] = now
        if replica.place.slots:
            # Requests come and go while it is read: in doubt they are from here.
            mine = max(mine, replica.mine)
            told = load.running + load.waiting
            self._hear(tier, replica, heard(replica.elsewhere, told, mine, replica.place.slots, now), now)

    def _hear(self, tier: Tier, replica: Replica, elsewhere: Elsewhere, now: float) -> None:
        has_more = elsewhere.places < replica.elsewhere.places
        replica.hear(elsewhere)
        if has_more:
            tier.offer(replica, now)
