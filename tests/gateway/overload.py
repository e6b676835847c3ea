"""The gateway's fleet, queue and decisions under load, on virtual time; only the engines are simulated, by a wait."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from gateway.breakers import Outcome
from gateway.fleet import Fleet
from gateway.policy.decide import decide
from gateway.policy.decision import Shed, Wait
from gateway.policy.facts import Facts, Priority
from gateway.policy.health import Health
from gateway.specs import BreakerSpec, Endpoint, Slo, TierSpec
from tests.gateway.policy.fleets import ROUTE
from tests.virtual_time import run

PREFILL_S = 0.01
SLO_S = 1.0
Service = Callable[[Random], float]


@dataclass(frozen=True)
class Asked:
    """One request: when, by whom, and which tiers it accepts."""

    at_s: float
    priority: Priority = "standard"
    lowest_tier: int = 9
    tenant: str = ""
    weight: float = 1.0


@dataclass(frozen=True)
class Got:
    """What became of it. `began_s` counts from its arrival."""

    asked: Asked
    tier: str
    began_s: float
    shed: Shed | None = None

    @property
    def in_time(self) -> bool:
        return self.shed is None and self.began_s + PREFILL_S <= SLO_S


@dataclass(frozen=True)
class Rig:
    """Tiers by name: replicas, slots of each, and how long an answer takes."""

    tiers: tuple[tuple[str, int, int, Service], ...]

    def serve(self, asked: Sequence[Asked], seed: int = 1) -> list[Got]:
        return run(self._serve(asked, Random(seed)))

    async def _serve(self, asked: Sequence[Asked], rng: Random) -> list[Got]:
        fleet = self._fleet()
        begun_at = asyncio.get_running_loop().time()
        return await asyncio.gather(*(self._one(fleet, a, begun_at, rng) for a in asked))

    def _fleet(self) -> Fleet:
        specs = [
            TierSpec(
                name=name,
                backend="openai",
                served_model="m",
                slots=slots,
                slo=Slo(ttft_s=SLO_S),
                replicas=tuple(Endpoint(url=f"http://127.0.0.1:{n + 1}") for n in range(count)),
            )
            for name, count, slots, _ in self.tiers
        ]
        fleet = Fleet("m", specs, BreakerSpec(), Random(0), "")
        for tier in fleet.tiers.values():
            for replica in tier.replicas.values():
                replica.become(Health("ready"))
        return fleet

    async def _one(self, fleet: Fleet, asked: Asked, begun_at: float, rng: Random) -> Got:
        """The pipeline's loop without its I/O."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(asked.at_s)
        arrived_at, promised, is_new = loop.time(), "", True
        facts = Facts(
            "m",
            arrived_at,
            arrived_at + 60.0,
            asked.priority,
            lowest_tier=asked.lowest_tier,
            tenant=asked.tenant,
            weight=asked.weight,
        )
        while True:
            now = loop.time()
            decision = decide(facts, fleet.snapshot(now, True, {}, promised), (), now, rng, ROUTE)
            if is_new:
                fleet.arrived(facts, "" if isinstance(decision, Shed) else decision.tier, now)
                is_new = False
            if isinstance(decision, Shed):
                return Got(asked, "", now - arrived_at, decision)
            if isinstance(decision, Wait):
                is_promised = await fleet.wait(decision.tier, facts, "", frozenset(), decision.until)
                promised = decision.tier if is_promised else ""
                continue
            assert decision.replica is not None
            permit = fleet.reserve(decision.tier, decision.replica, now)
            assert permit is not None
            service = next(service for name, _, _, service in self.tiers if name == decision.tier)
            await asyncio.sleep(service(rng))
            permit.settle(Outcome.SUCCESS, loop.time())
            return Got(asked, decision.tier, now - arrived_at)


def poisson(
    per_s: float, duration_s: float, mix: dict[Priority, float], seed: int = 1, lowest: int = 9
) -> list[Asked]:
    """Poisson arrivals."""
    rng = Random(seed)
    asked: list[Asked] = []
    now = rng.expovariate(per_s)
    while now < duration_s:
        asked.append(Asked(now, rng.choices(list(mix), list(mix.values()))[0], lowest))
        now += rng.expovariate(per_s)
    return asked
