"""The ladder of one model: looks at each tier's signals twice a second, and tells the tier which share it may have.

Gateways that share a store agree on it; one that is alone decides alone. An operator's word goes before what the signals
say, until it expires.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from time import time

from gateway.beside import Beside
from gateway.fleet import Fleet
from gateway.overrides import Override, Overrides
from gateway.peers import Peers
from gateway.policy.agreement import Voice, following, leader, pooled, voice_of
from gateway.policy.ladder import Rung, Signals, admitted, pressure, returned, stepped
from gateway.policy.recent import Recent
from gateway.tier import Tier
from state_store.protocol import StateStore

STEP_S = 0.5
TOLERABLE_FAILURES = 0.5
"""Of attempts. Fewer are for retries and breakers to deal with: a tier that answers in the end is not ill."""
TOLERABLE_LOSS = 0.75
NEARLY_FULL = 0.9
"""Of the KV cache. Beyond, engines preempt what they have begun."""
KV_BELIEVED_S = 6.0
"""How long an engine's word on its KV cache counts: three readings. A stale one presses nothing."""
TOLERABLE_OUT = 0.5
"""Of the features that a model's requests need."""
OUT_EWMA = 0.2
"""The weight of the newest look at them: what fails for less than two seconds presses nothing."""
LOST_S = 1.0
"""A tier that has had no replica for that long is lost: what pressed it before is over."""


class Ladder(Beside):
    """Keeps the shares of one fleet's tiers current for as long as it runs."""

    def __init__(
        self, fleet: Fleet, store: StateStore, out_share: Callable[[], float | None] = lambda: None
    ) -> None:
        self._fleet, self._out_share = fleet, out_share
        self._out: float | None = None
        self._overrides = Overrides(fleet.model, store)
        self._peers = Peers(fleet.model, store)
        self._voices: dict[str, Voice] = {}
        self._rungs: dict[str, Rung] = {}
        self._gone_since: dict[str, float] = {}

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.exchange(loop.time(), time())
            self.step(loop.time(), time())
            await asyncio.sleep(STEP_S)

    async def exchange(self, now: float, wall: float) -> None:
        """Tells the other gateways what is so here, and hears them, and what operators have set. The store may be away."""
        await self._overrides.exchange(wall)
        await self._peers.exchange(self._voices, now)

    @property
    def peers(self) -> int:
        """Other gateways that it agrees with."""
        return self._peers.count

    def step(self, now: float, wall: float) -> None:
        """Looks at the signals once; `now` is monotonic, `wall` the same moment in Unix time."""
        self._look_at_dependencies()
        for place, tier in enumerate(self._fleet.tiers.values()):
            if tier.spec.has_replicas:
                tier.recent.forget(r.replica for r in tier.replicas.values() if r.is_out(now))
                # Without what they need, requests are not worth the best tier; any lower one is as good as it was.
                out = self._out if place == 0 else None
                tier.signals = replace(signals_of(tier, now), dependencies=out)
                tier.pressure, reason = pressure(tier.signals)
                self._step_rung(tier, reason, now)
            self._allot(tier, now, wall)

    def _look_at_dependencies(self) -> None:
        out = self._out_share()
        before = self._out or 0.0
        self._out = None if out is None else before + OUT_EWMA * (out / TOLERABLE_OUT - before)

    def _step_rung(self, tier: Tier, reason: str, now: float) -> None:
        """Without a replica the tier gets nothing anyway, and should have it all as soon as one is back."""
        rung = self._rungs.get(tier.name, Rung())
        has_replicas = any(not replica.is_out(now) for replica in tier.replicas.values())
        sees = has_traffic(tier.signals)
        voice = voice_of(rung, tier.pressure, reason, now, has_replicas=has_replicas, sees=sees)
        if has_replicas:
            self._gone_since.pop(tier.name, None)
            rung = self._agreed(tier.name, rung, voice, now)
        elif now - self._gone_since.setdefault(tier.name, now) >= LOST_S:
            rung, tier.recent = returned(rung), Recent()
        self._rungs[tier.name] = rung
        self._voices[tier.name] = voice_of(
            rung, tier.pressure, reason, now, has_replicas=has_replicas, sees=sees
        )

    def _agreed(self, tier: str, rung: Rung, voice: Voice, now: float) -> Rung:
        """The leader steps by what all see; who is not the leader follows it."""
        others, me = self._peers.of(tier, now), self._peers.myself(voice)
        led = leader([me, *others])
        if led is not None and led.gateway != me.gateway:
            return following(rung, led.voice, now)
        press, reason = pooled([voice, *(peer.voice for peer in others)])
        return stepped(rung, press, reason, now)

    def _allot(self, tier: Tier, now: float, wall: float) -> None:
        rung, override = self._rungs.get(tier.name, Rung()), self._overrides.of(tier.name, wall)
        share, reason = rung.share, f"pressure_{rung.reason}" if rung.reason else ""
        if override is not None:
            share, reason = override.share, override.reason
        outranking, all_per_s = tier.arrivals.outranking_per_s(now), tier.arrivals.per_s(now)
        critical, standard, sheddable = (admitted(share, rank, outranking, all_per_s) for rank in range(3))
        tier.allot(share, reason, (critical, standard, sheddable))

    def pin(self, tier: str, for_s: float) -> None:
        """For that long this tier is the best that requests get; who accepts no lower one still gets its own.

        Raises:
            KeyError: there is no such tier.
        """
        names = list(self._fleet.tiers)
        if tier not in names:
            raise KeyError(tier)
        self.release()
        for name in names[: names.index(tier)]:
            self._overrides.set(name, Override(0.0, "pinned", time() + for_s))
        self._overrides.set(tier, Override(1.0, "pinned", time() + for_s))
        self.step(asyncio.get_running_loop().time(), time())

    def override(self, tier: str, share: float, for_s: float) -> None:
        """Sets one tier's share for that long.

        Raises:
            KeyError: there is no such tier.
        """
        if tier not in self._fleet.tiers:
            raise KeyError(tier)
        self._overrides.set(tier, Override(share, "override", time() + for_s))
        self.step(asyncio.get_running_loop().time(), time())

    def release(self) -> None:
        """Ends every pin and override."""
        for tier in self._overrides.tiers():
            self._overrides.set(tier, None)
        self.step(asyncio.get_running_loop().time(), time())

    def expires_in_s(self, tier: str, wall: float) -> float | None:
        """How long the operator's word on a tier still holds; None when there is none."""
        override = self._overrides.of(tier, wall)
        return None if override is None else round(override.until - wall, 1)


def has_traffic(signals: Signals) -> bool:
    """Whether requests have shown anything of the tier lately."""
    return any(value is not None for value in (signals.ttft, signals.errors, signals.queue))


def signals_of(tier: Tier, now: float) -> Signals:
    """What is known of a tier now; what nobody has seen lately is None, and presses nothing."""
    slo_s, recent = tier.spec.slo.ttft_s, tier.recent
    ttft_s, wait_s, failures = recent.ttft_p99_s(now), recent.wait_p99_s(now), recent.failure_share(now)
    lost = sum(not r.health.is_ready for r in tier.replicas.values())
    return Signals(
        ttft=None if ttft_s is None else ttft_s / slo_s,
        errors=None if failures is None else failures / TOLERABLE_FAILURES,
        queue=None if wait_s is None else wait_s / slo_s,
        kv=_over_full(tier, now),
        lost=lost / len(tier.replicas) / TOLERABLE_LOSS if tier.replicas else None,
    )


def _over_full(tier: Tier, now: float) -> float | None:
    """The mean use of the KV caches that were read lately, against nearly full."""
    uses = [
        r.kv_use
        for r in tier.replicas.values()
        if not r.is_out(now) and r.kv_use is not None and now - r.kv_as_of < KV_BELIEVED_S
    ]
    return sum(uses) / len(uses) / NEARLY_FULL if uses else None
