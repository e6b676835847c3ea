"""The live fleet of one model: its tiers, and what happens to all of them at once."""

from collections.abc import Callable, Iterable, Mapping
from random import Random

import pybreaker

from gateway.breakers import Breaker
from gateway.http_client import Origin
from gateway.policy.facts import RANK, Facts
from gateway.policy.health import Health
from gateway.policy.limit import limit_of
from gateway.policy.prefix import PrefixIndex
from gateway.policy.snapshot import ReplicaView, Snapshot
from gateway.replica import Place, Replica
from gateway.specs import BreakerSpec, TierSpec
from gateway.tier import Permit, Tier

AFTERWARDS_S = 300.0
"""What a request may take beyond its deadline, for a client that reads slowly."""


class Fleet:
    """All tiers of one model."""

    def __init__(
        self, model: str, tiers: Iterable[TierSpec], breaker: BreakerSpec, rng: Random, zone: str
    ) -> None:
        self.model, self._rng = model, rng
        self.listeners: list[pybreaker.CircuitBreakerListener] = []
        self.tiers: dict[str, Tier] = {}
        self.ladder: tuple[str, ...] = ()
        """The names of the tiers in order: another object after each reload."""
        self._removed: dict[str, Tier] = {}
        self._forget_at: dict[str, float] = {}
        self.longest_request_s = 0.0
        """How long a request may be under way that was decided before a reload."""
        self._leaving: list[tuple[Tier, Replica]] = []
        self.prefixes = PrefixIndex()
        self.routed: Callable[[str, tuple[int, ...], list[int], int], None] = self._routed
        """Told at a first token: the replica, and the prompt's chain, token ids and bytes."""
        self.apply(tiers, breaker, zone)

    def _routed(self, replica: str, chain: tuple[int, ...], prompt_ids: list[int], size_bytes: int) -> None:
        self.prefixes.add(replica, chain)

    def apply(self, specs: Iterable[TierSpec], breaker: BreakerSpec, zone: str) -> None:
        """Takes a new ladder. Replicas that stay keep their state; those that go serve what they have and nothing more."""
        self._breaker_spec, self._zone = breaker, zone
        old, self.tiers = self.tiers, {}
        for spec in specs:
            tier = old.pop(spec.name, None) or Tier(spec)
            self._retune(tier, spec)
            self.tiers[spec.name] = tier
            if spec.backend == "openai":
                self.place(tier, static_places(spec))
        for tier in old.values():
            self.place(tier, {})
        for tier in [*self.tiers.values(), *old.values()]:
            tier.changed()
        self.ladder = tuple(self.tiers)
        self._removed.update(old)
        for name in self.tiers.keys() & self._removed.keys():
            # It is back: what asks for it now gets the one that serves.
            del self._removed[name]
            self._forget_at.pop(name, None)

    def _retune(self, tier: Tier, spec: TierSpec) -> None:
        """Has its replicas go by what changed, without forgetting what they have learnt."""
        before, tier.spec = tier.spec, spec
        learns_anew = (before.limit, before.slo.ttft_s) != (spec.limit, spec.slo.ttft_s)
        for replica in tier.replicas.values():
            replica.breaker.retune(self._breaker_spec)
            if learns_anew:
                replica.learn_by(spec.limit, spec.slo.ttft_s)

    def tier(self, name: str) -> Tier:
        """The tier of that name; one that a reload took out, too, for requests that were decided before."""
        return self.tiers.get(name) or self._removed[name]

    def forget(self, now: float) -> None:
        """Lets go of tiers that a reload took out, once no request can be left that was decided before."""
        for name in list(self._removed):
            if now >= self._forget_at.setdefault(name, now + self.longest_request_s + AFTERWARDS_S):
                del self._removed[name], self._forget_at[name]

    @property
    def remembered(self) -> int:
        """Tiers that a reload took out and that are not forgotten yet."""
        return len(self._removed)

    def place(self, tier: Tier, places: Mapping[str, Place]) -> list[Replica]:
        """Makes the tier consist of these replicas; those that are new.

        A replica of which only the zone, the slots or the key changed stays what it is, in rotation if it was.
        """
        for name, place in places.items():
            known = tier.replicas.get(name)
            if known is not None and known.place != place and known.place.is_same_server(place):
                known.retune(place)
        for name in [n for n, r in tier.replicas.items() if places.get(n) != r.place]:
            replica = tier.drop(name)
            replica.become(Health("draining", "removed", replica.health.since))
            replica.pool.close()
            self._leaving.append((tier, replica))
        new = [self._replica(tier, place) for name, place in places.items() if name not in tier.replicas]
        tier.replicas.update((r.replica, r) for r in new)
        if new:
            tier.changed()
        return new

    @property
    def is_busy(self) -> bool:
        """Whether anything runs, or waits to."""
        tiers = self.tiers.values()
        runs = any(replica.in_flight for tier in tiers for replica in tier.replicas.values())
        return runs or any(len(tier.room) for tier in tiers) or bool(self.leaving())

    def leaving(self) -> list[tuple[Tier, Replica]]:
        """Replicas that were taken out of their tiers, for as long as they answer something."""
        self._leaving = [(tier, replica) for tier, replica in self._leaving if replica.in_flight]
        return self._leaving

    def _replica(self, tier: Tier, place: Place) -> Replica:
        name = f"{self.model}/{tier.name}/{place.replica}"
        breaker = Breaker(name, self._breaker_spec, self._rng, self.listeners)
        replica = Replica(place, breaker, tier.changed, limit_of(tier.spec.limit, tier.spec.slo.ttft_s))
        replica.freed = tier.freed
        return replica

    def arrived(self, facts: Facts, decided_tier: str, now: float) -> None:
        """A new request wanted a place in every tier down to the one that it was given; in all, if in none."""
        for tier in list(self.tiers.values())[: facts.lowest_tier + 1]:
            tier.arrivals.add(RANK[facts.priority], now)
            if tier.name == decided_tier:
                return

    def is_lost(self, tier_name: str, replica: str) -> bool:
        """Whether a session's replica can't have it now."""
        tier = self.tiers.get(tier_name)
        return tier is None or replica not in tier.replicas or not tier.replicas[replica].health.is_ready

    def snapshot(
        self, now: float, may_retry: bool, bindings: Mapping[str, str], promised: str = ""
    ) -> Snapshot:
        views = [t.view(now) for t in self.tiers.values()]
        return Snapshot(views, may_retry, bindings, self._zone, self.prefixes, promised)

    def reserve(self, tier_name: str, chosen: ReplicaView, now: float, size_bytes: int = 0) -> Permit | None:
        """Takes the place that a decision assigned, for a prompt of which so much is new; None when its breaker has no probe
        left, so decide again.

        Called in the same step as the decision, before any await.
        """
        tier = self.tiers[tier_name]
        replica = tier.replicas[chosen.replica]
        try:
            pass_ = replica.breaker.enter(now)
        except pybreaker.CircuitBreakerError:
            tier.changed()
            return None
        replica.in_flight += 1
        if pass_.is_probe:
            tier.changed()
        return Permit(tier, replica, pass_, now, size_bytes)

    async def wait(
        self, tier_name: str, facts: Facts, replica: str, tried: frozenset[str], until: float
    ) -> bool:
        """Waits for a place in the tier (on `replica`, when named; on none of `tried`), or until `until`; then decide again.

        Whether a place is promised, if that decision comes in the same step.
        """
        tier = self.tiers[tier_name]
        return await tier.room.wait(
            RANK[facts.priority], facts.deadline, replica, until, tried, facts.tenant, facts.weight
        )


def static_places(spec: TierSpec) -> dict[str, Place]:
    """The replicas that the config lists, by host and port."""
    places = {}
    for endpoint in spec.replicas:
        name = Origin.of(endpoint.url).host_header
        name = name if name not in places else endpoint.url
        places[name] = Place(
            name, endpoint.url, spec.served_model or "", endpoint.zone, spec.slots, spec.api_key, spec.tls
        )
    return places
