"""The ladder of one model: looks at each tier's signals twice a second, and tells the tier which share it may have.

An operator's word goes before what the signals say, until it expires.
"""

import asyncio
from dataclasses import dataclass

from gateway.fleet import Fleet, Tier
from gateway.policy.ladder import Rung, Signals, admitted, pressure, stepped

STEP_S = 0.5
TOLERABLE_FAILURES = 0.2
TOLERABLE_LOSS = 0.75


@dataclass(frozen=True, slots=True)
class Override:
    """A share that an operator set, until `until` (monotonic seconds)."""

    share: float
    reason: str
    until: float


class Ladder:
    """Keeps the shares of one fleet's tiers current for as long as it runs."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._rungs: dict[str, Rung] = {}
        self._overrides: dict[str, Override] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="ladder")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(STEP_S)
            self.step(loop.time())

    def step(self, now: float) -> None:
        """Looks at the signals once."""
        for name in [n for n, o in self._overrides.items() if now >= o.until]:
            del self._overrides[name]
        for name, tier in self._fleet.tiers.items():
            if tier.spec.has_replicas:
                self._rungs[name] = stepped(self._rungs.get(name, Rung()), *self._pressure(tier, now), now)
            self._tell(tier, now)

    def _pressure(self, tier: Tier, now: float) -> tuple[float, str]:
        tier.signals = signals_of(tier, now)
        tier.pressure, reason = pressure(tier.signals)
        return tier.pressure, reason

    def _tell(self, tier: Tier, now: float) -> None:
        rung, override = self._rungs.get(tier.name, Rung()), self._overrides.get(tier.name)
        share, reason = (
            (override.share, override.reason) if override else (rung.share, f"pressure_{rung.reason}")
        )
        outranking, all_per_s = tier.arrivals.outranking_per_s(now), tier.arrivals.per_s(now)
        critical, standard, sheddable = (admitted(share, rank, outranking, all_per_s) for rank in range(3))
        tier.allot(share, reason if share < 1.0 else "", (critical, standard, sheddable))

    def pin(self, tier_name: str, until: float, now: float) -> None:
        """From now on this tier is the best that requests get, whatever the signals say; who accepts no lower tier gets its own.

        Raises:
            KeyError: there is no such tier.
        """
        names = list(self._fleet.tiers)
        if tier_name not in names:
            raise KeyError(tier_name)
        above = names[: names.index(tier_name)]
        self._overrides = {name: Override(0.0, "pinned", until) for name in above}
        self._overrides[tier_name] = Override(1.0, "pinned", until)
        self.step(now)

    def override(self, tier_name: str, share: float, until: float, now: float) -> None:
        """Sets one tier's share.

        Raises:
            KeyError: there is no such tier.
        """
        if tier_name not in self._fleet.tiers:
            raise KeyError(tier_name)
        self._overrides[tier_name] = Override(share, "override", until)
        self.step(now)

    def release(self, now: float) -> None:
        """Ends every pin and override."""
        self._overrides.clear()
        self.step(now)

    def overrides(self, now: float) -> dict[str, dict[str, float | str]]:
        """What operators have set, by tier."""
        return {
            name: {"share": o.share, "reason": o.reason, "expires_in_s": round(o.until - now, 1)}
            for name, o in self._overrides.items()
        }


def signals_of(tier: Tier, now: float) -> Signals:
    """What is known of a tier now; what nobody has seen lately is None, and presses nothing."""
    slo_s, recent = tier.spec.slo.ttft_s, tier.recent
    ttft_s, wait_s, failures = recent.ttft_p99_s(now), recent.wait_p99_s(now), recent.failure_share(now)
    lost = sum(not r.health.is_ready for r in tier.replicas.values())
    return Signals(
        ttft=None if ttft_s is None else ttft_s / slo_s,
        errors=None if failures is None else failures / TOLERABLE_FAILURES,
        queue=None if wait_s is None else wait_s / slo_s,
        lost=lost / len(tier.replicas) / TOLERABLE_LOSS if tier.replicas else None,
    )
