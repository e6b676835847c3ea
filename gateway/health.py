"""Watches the replicas: probes each one by itself, notices those that hang or stand out, and follows the registry."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from random import Random
from statistics import median
from typing import Literal, cast, get_args

import aiohttp

from gateway.failure import ExchangeFailed
from gateway.fleet import Fleet
from gateway.gossip import BreakerGossip
from gateway.known_answer import KnownAnswer
from gateway.policy.health import Health, after_failure, after_pass
from gateway.policy.heartbeat import Heartbeats
from gateway.policy.outlier import FACTOR, GAP_FLOOR_S, TTFT_FLOOR_S, ejection_s, slowest
from gateway.policy.patience import gap_patience_s
from gateway.replica import Place, Replica, Stream
from gateway.specs import HealthSpec
from gateway.tier import Tier
from replicas.autoscaling.rotation import ROTATIONS, RotationRecord
from replicas.probe import KnownPrompt, ProbeResult, open_probe_session, probe_ready, probe_right
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import REPLICAS, ReplicaRecord

log = logging.getLogger("graceway.health")

SWEEP_S = 0.05
OUTLIER_EVERY = 5
"""Sweeps between two looks for outliers."""
REGISTRY_S = 0.5
STREAM_SILENCE_FACTOR = 2.0
"""One silent stream on a replica whose others advance: the engine lost it, or preempted it; it gets this much longer."""
HOPELESS_S = 10.0
"""Silence after which a replica that nobody can stand in for is given up: its clients are told, rather than kept waiting."""
MIN_SAMPLES = 8
EJECT_BASE_S, EJECT_MAX_S = 1.0, 30.0
PROBE_AGAIN_S = {"starting": 0.25, "suspect": 0.1, "down": 1.0, "quarantined": 1.0, "ejected": 0.5}
PROBE_FLOOR_S = 0.05


RegisteredState = Literal["starting", "draining", "down"]


class HealthWatch:
    """Keeps one fleet's health current for as long as it runs."""

    def __init__(self, fleet: Fleet, spec: HealthSpec, store: StateStore, rng: Random) -> None:
        self.fleet, self.spec, self._store, self._rng = fleet, spec, store, rng
        self._probes: dict[Replica, asyncio.Task[None]] = {}
        self._gossip = BreakerGossip(store, lambda: (r.breaker for r in self._replicas()))
        self._loops: list[asyncio.Task[None]] = []
        self._known: dict[str, KnownAnswer] = {}
        self._hearts: dict[Replica, tuple[float, Heartbeats]] = {}
        """By managed replica: the last beat's own time, and the rhythm."""
        self.listeners: list[Callable[[Replica, Health, Health], None]] = []
        """Called with a replica, its old health and its new one, when the state changes."""

    async def start(self, settle_s: float) -> None:
        """Starts watching; returns when every replica has been probed once, or after `settle_s`."""
        await self._follow_registry()
        self._track()
        self._loops = [
            asyncio.create_task(self._sweep_forever(), name="health-sweep"),
            asyncio.create_task(self._registry_forever(), name="health-registry"),
            asyncio.create_task(self._gossip.run(), name="health-gossip"),
        ]
        with suppress(TimeoutError):
            async with asyncio.timeout(settle_s):
                await asyncio.gather(*(r.was_probed.wait() for r in self._replicas()))

    async def stop(self) -> None:
        tasks = [*self._loops, *self._probes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _replicas(self) -> list[Replica]:
        return [r for tier in self.fleet.tiers.values() for r in tier.replicas.values()]

    def _track(self) -> None:
        """One probing task for each replica that is there, and none for those that are gone."""
        current = {r: tier for tier in self.fleet.tiers.values() for r in tier.replicas.values()}
        for replica in [r for r in self._probes if r not in current]:
            self._probes.pop(replica).cancel()
            self._hearts.pop(replica, None)
        for name in [name for name in self._known if name not in self.fleet.tiers]:
            del self._known[name]
        for replica, tier in current.items():
            if replica not in self._probes:
                self._probes[replica] = asyncio.create_task(
                    self._probe_forever(tier, replica), name="health-probe"
                )

    # probes

    async def _probe_forever(self, tier: Tier, replica: Replica) -> None:
        known = self._known.setdefault(tier.name, KnownAnswer())
        try:
            async with open_probe_session(replica.tls) as session:
                while True:
                    replica.kick.clear()
                    if replica.tls is not None:
                        replica.tls.refresh()
                    if replica.health.state != "draining" and replica.is_registered_ready:
                        await self._probe(tier, replica, session, known)
                    replica.was_probed.set()
                    pause_s = min(
                        PROBE_AGAIN_S.get(replica.health.state, self.spec.interval_s), self.spec.interval_s
                    )
                    with suppress(TimeoutError):
                        await asyncio.wait_for(replica.kick.wait(), pause_s)
        finally:
            known.forget(replica.replica)

    async def _probe(
        self, tier: Tier, replica: Replica, session: aiohttp.ClientSession, known: KnownAnswer
    ) -> None:
        last_token_at = replica.last_token_at
        result = await probe_ready(
            session,
            replica.place.url,
            served_model=replica.place.served_model,
            api_key=replica.place.api_key,
            timeout_s=self.spec.timeout_s,
        )
        if result.is_ok:
            replica.max_model_len = result.max_model_len
            result = await self._probe_right(tier, replica, session, known)
        if result.kind == "wrong":
            self._quarantine(replica, result.reason)
        elif result.is_ok:
            self._passed(tier, replica, result)
        elif not result.is_backpressure and not (
            replica.health.is_ready and replica.last_token_at > last_token_at
        ):
            self._missed(replica, result)

    async def _probe_right(
        self, tier: Tier, replica: Replica, session: aiohttp.ClientSession, known: KnownAnswer
    ) -> ProbeResult:
        """The known prompt; twice when the first answer is the first at all, or wrong."""
        for _ in range(2):
            result = await self._ask_known(tier, replica, session)
            if not result.is_ok or tier.spec.probe is None:
                return result
            is_wrong = known.is_wrong(replica.replica, result.answer)
            if not is_wrong and (known.answer is not None or known.is_off):
                return result
        if is_wrong:
            return ProbeResult("wrong", f"answered {result.answer[:40]!r}", result.latency_s, result.as_of)
        return result

    async def _ask_known(self, tier: Tier, replica: Replica, session: aiohttp.ClientSession) -> ProbeResult:
        probe = tier.spec.probe
        if probe is None:
            return ProbeResult("ok", "", 0.0, 0.0)
        with tier.probing(replica):
            result = await probe_right(
                session,
                replica.place.url,
                served_model=replica.place.served_model,
                known=KnownPrompt(probe.prompt, probe.expect, probe.max_tokens),
                api_key=replica.place.api_key,
                timeout_s=max(
                    self.spec.timeout_s, tier.spec.slo.ttft_s + probe.max_tokens * tier.spec.slo.itl_s
                ),
            )
        if result.kind == "failed" and result.reason.endswith(("answered 404", "answered 405")):
            # A server without text completions can't be asked the known prompt; that is no illness.
            return ProbeResult("ok", "", 0.0, result.as_of)
        return result

    def _passed(self, tier: Tier, replica: Replica, result: ProbeResult) -> None:
        now = asyncio.get_running_loop().time()
        replica.probe_s = result.latency_s
        if replica.health.state == "ejected" and (
            now < replica.out_until or self._is_still_slow(tier, replica)
        ):
            return
        self._become(replica, after_pass(replica.health, self.spec.up_after, now))

    def _is_still_slow(self, tier: Tier, replica: Replica) -> bool:
        peers = [
            r.probe_s for r in tier.replicas.values() if r is not replica and r.health.is_ready and r.probe_s
        ]
        return bool(peers) and replica.probe_s > FACTOR * median(peers) + PROBE_FLOOR_S

    def _missed(self, replica: Replica, result: ProbeResult) -> None:
        now = asyncio.get_running_loop().time()
        self._become(replica, after_failure(replica.health, result.reason, self.spec.down_after, now))
        if replica.health.state == "down":
            # Whose answer has begun, and can't go on elsewhere, has nothing better to do than to listen.
            replica.break_streams("replica_down", lambda s: not s.last_token_at or s.can_move())
            self.fleet.prefixes.forget(replica.replica)

    def _quarantine(self, replica: Replica, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        self._become(replica, Health("quarantined", reason, now))

    def _become(self, replica: Replica, health: Health) -> None:
        if health.state != replica.health.state:
            log.warning(
                "%s: %s → %s %s", replica.breaker.name, replica.health.state, health.state, health.reason
            )
            for listener in self.listeners:
                listener(replica, replica.health, health)
        replica.become(health)

    # what traffic shows

    async def _sweep_forever(self) -> None:
        loop = asyncio.get_running_loop()
        turn, due, trusted_from = 0, loop.time(), 0.0
        while True:
            due += SWEEP_S
            await asyncio.sleep(max(0.0, due - loop.time()))
            now = loop.time()
            if now - due > SWEEP_S:
                # The gateway itself was held up: what looks like silence may be waiting in its sockets.
                trusted_from, due = now + SWEEP_S, now
            if now < trusted_from:
                continue
            turn += 1
            for tier in self.fleet.tiers.values():
                for replica in tier.replicas.values():
                    self._sweep(tier, replica, now)
                if turn % OUTLIER_EVERY == 0:
                    self._eject_outliers(tier, now)
            for tier, replica in self.fleet.leaving():
                self._sweep(tier, replica, now)
            self.fleet.forget(now)

    def _sweep(self, tier: Tier, replica: Replica, now: float) -> None:
        if not replica.streams:
            return
        begun = [s for s in replica.streams if s.last_token_at and not s.is_blocked]
        if not replica.health.is_ready:
            _give_up_hope([s for s in begun if now - s.last_token_at > HOPELESS_S])
        decoding = [s for s in begun if s.is_movable]
        if not decoding:
            return
        patience_s = self._patience_s(tier, replica)
        silence_s = now - max(s.last_token_at for s in decoding)
        if silence_s > patience_s:
            self._hung(replica, silence_s, now)
            return
        for stream in decoding:
            if now - stream.last_token_at > STREAM_SILENCE_FACTOR * patience_s:
                stream.connection.fail(ExchangeFailed("gap", "the stream fell silent"))

    def _patience_s(self, tier: Tier, replica: Replica) -> float:
        is_prefilling = any(not s.last_token_at for s in replica.streams)
        prefill_s = 2 * (tier.ttfts.quantile(0.99) or tier.spec.slo.ttft_s) if is_prefilling else 0.0
        return gap_patience_s(replica.gaps, tier.spec.slo.itl_s, prefill_s)

    def _hung(self, replica: Replica, silence_s: float, now: float) -> None:
        """Streams that can go on elsewhere do. The others lose nothing by listening on: it may only pause."""
        if replica.health.is_ready:
            log.warning("%s: no token for %.0f ms while decoding", replica.breaker.name, silence_s * 1e3)
            replica.signal("suspect", "hung", now)
        replica.break_streams("hung", lambda stream: stream.can_move())

    def _eject_outliers(self, tier: Tier, now: float) -> None:
        replicas = tier.replicas.values()
        out = sum(not r.health.is_ready for r in replicas)
        ready = [r for r in replicas if r.health.is_ready]
        gaps = {r.replica: median(r.recent_gaps) for r in ready if len(r.recent_gaps) >= MIN_SAMPLES}
        ttfts = {r.replica: median(r.recent_ttfts) for r in ready if len(r.recent_ttfts) >= MIN_SAMPLES}
        share = self.spec.max_ejected_share
        name = slowest(gaps, GAP_FLOOR_S, out, share) or slowest(ttfts, TTFT_FLOOR_S, out, share)
        if name is not None:
            self._eject(tier.replicas[name], now)

    def _eject(self, replica: Replica, now: float) -> None:
        replica.ejections = replica.ejections + 1 if now < replica.out_until + 60.0 else 1
        replica.out_until = now + ejection_s(replica.ejections, EJECT_BASE_S, EJECT_MAX_S, self._rng)
        self._become(replica, Health("ejected", "slower than its peers", now))
        replica.kick.set()
        replica.break_streams("slow", lambda stream: stream.is_movable and stream.can_move())

    # the registry

    async def _registry_forever(self) -> None:
        while True:
            await asyncio.sleep(REGISTRY_S)
            await self._follow_registry()
            self._track()

    async def _follow_registry(self) -> None:
        """Takes over what the supervisors of managed tiers have registered. Without the store, what is known stays."""
        managed = {t.name: t for t in self.fleet.tiers.values() if t.spec.is_managed}
        if not managed:
            return
        try:
            raws = await self._store.scan(REPLICAS)
            await self._follow_rotations([t for t in managed.values() if t.spec.in_rotation is not None])
        except StateStoreUnavailable:
            return
        records = [r for r in map(ReplicaRecord.from_bytes, raws.values()) if r is not None and r.is_sound]
        mine = [r for r in records if r.model == self.fleet.model]
        for tier in managed.values():
            self._take(tier, {r.replica: r for r in mine if r.tier == tier.name})

    async def _follow_rotations(self, tiers: list[Tier]) -> None:
        if not tiers:
            return
        records = map(RotationRecord.from_bytes, (await self._store.scan(ROTATIONS)).values())
        counts = {r.tier: r.replicas for r in records if r is not None and r.model == self.fleet.model}
        for tier in tiers:
            tier.rotate(counts.get(tier.name))

    def _take(self, tier: Tier, records: dict[str, ReplicaRecord]) -> None:
        places = {
            name: Place(name, r.url, r.served_model, r.zone, r.slots, mig_slice=r.mig_slice)
            for name, r in records.items()
            if r.url
        }
        self.fleet.place(tier, places)
        for name in places:
            self._follow(tier.replicas[name], records[name])

    def _listen(self, replica: Replica, record: ReplicaRecord) -> None:
        """A heart that falls silent earlier than its lease lapses: a probe at once, for it may be the store's silence."""
        now = asyncio.get_running_loop().time()
        beat_at, heart = self._hearts.get(replica, (0.0, Heartbeats(record.heartbeat_s)))
        if record.as_of != beat_at:
            heart.beat(now)
        elif heart.verdict(now) != "alive":
            replica.kick.set()
        self._hearts[replica] = (record.as_of, heart)

    def _follow(self, replica: Replica, record: ReplicaRecord) -> None:
        """The supervisor's word: it knows first when an engine dies or is to drain; `ready` is still checked by probes."""
        self._listen(replica, record)
        replica.held_blocks = record.held_blocks
        replica.stand(record.ready_since, record.is_leaving)
        was_ready, replica.is_registered_ready = replica.is_registered_ready, record.state == "ready"
        now = asyncio.get_running_loop().time()
        if record.state == "ready":
            if not was_ready:
                self._become(replica, Health("starting", "registered", now))
                replica.kick.set()
        elif replica.health.state != record.state and record.state in get_args(RegisteredState):
            self._become(replica, Health(cast(RegisteredState, record.state), record.reason, now))
            if record.state == "down":
                replica.break_streams("replica_down")
                self.fleet.prefixes.forget(replica.replica)


def _give_up_hope(streams: list[Stream]) -> None:
    for stream in streams:
        stream.connection.fail(
            ExchangeFailed("hung", "the stream fell silent, and nobody could go on with it")
        )
