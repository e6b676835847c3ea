"""Routing inside a tier: candidates → filter → score → pick.

Candidates are few however large the tier is: the replica that holds the session, its standby, and a random handful;
so a decision costs the same for ten replicas and for a thousand (Mitzenmacher: two random choices are nearly as good
as all of them, and a handful is closer still). Filters, scorers and pickers are plain functions; `resolve` finds
one by its name here or by import path.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

from gateway.policy.facts import Attempt, Facts
from gateway.policy.rendezvous import choices, digest
from gateway.policy.rng import Rng
from gateway.policy.snapshot import Prefixes, ReplicaView, Snapshot, TierView

CANDIDATES = 4
LOAD_BOUND = 1.25
"""A session's first choice may carry this many times the mean load before a new session goes to its second
(Mirrokni, Thorup, Zadimoghaddam: consistent hashing with bounded loads)."""


@dataclass(frozen=True, slots=True)
class Context:
    """Everything that a filter or scorer may look at."""

    facts: Facts
    tier: TierView
    bound: str
    """The replica that the session is pinned to in this tier; empty when there is none."""
    preferred: tuple[str, ...]
    """The session's first and second choice, the second one in another zone where there is one."""
    tried: frozenset[str]
    zone: str
    prefixes: Prefixes | None = None


Filter = Callable[[ReplicaView, Context], bool]
Scorer = Callable[[ReplicaView, Context], float]
Picker = Callable[[Sequence[tuple[float, ReplicaView]], Rng], ReplicaView]


@dataclass(frozen=True, slots=True)
class Route:
    """A tier's routing policy: filters in order, scorers with weights, one picker."""

    filters: tuple[Filter, ...]
    scorers: tuple[tuple[Scorer, float], ...]
    picker: Picker

    def pick(self, candidates: Sequence[ReplicaView], context: Context, rng: Rng) -> ReplicaView | None:
        """The replica to use, or None when no candidate passes the filters."""
        passed = [r for r in candidates if all(accepts(r, context) for accepts in self.filters)]
        if len(passed) < 2:
            return passed[0] if passed else None
        return self.picker([(self._score(r, context), r) for r in passed], rng)

    @property
    def needs_free_slot(self) -> bool:
        """Whether engines get at most their slots."""
        return free_slot in self.filters

    @property
    def keeps_sessions(self) -> bool:
        """Whether sessions matter to it at all."""
        return any(scorer is session for scorer, _ in self.scorers)

    def _score(self, replica: ReplicaView, context: Context) -> float:
        return sum(weight * scorer(replica, context) for scorer, weight in self.scorers)


def not_tried(replica: ReplicaView, context: Context) -> bool:
    """A replica that has failed this request does not get it again."""
    return replica.replica not in context.tried


def free_slot(replica: ReplicaView, context: Context) -> bool:
    """Engines get at most their slots: what waits, waits in the gateway, where priority and deadline count."""
    return replica.slots is None or replica.in_flight < replica.slots


def session(replica: ReplicaView, context: Context) -> float:
    """1 for the replica that holds the session; for a new session 1 and 0.5 for its choices while they are not overloaded."""
    if context.bound:
        return float(replica.replica == context.bound)
    if replica.replica not in context.preferred or _is_overloaded(replica, context):
        return 0.0
    return 1.0 if replica.replica == context.preferred[0] else 0.5


def _is_overloaded(replica: ReplicaView, context: Context) -> bool:
    routable = context.tier.routable
    if len(routable) > CANDIDATES:
        return replica.slots is not None and replica.in_flight * LOAD_BOUND > replica.slots
    mean = sum(r.in_flight for r in routable) / len(routable)
    return replica.in_flight > LOAD_BOUND * mean + 1


def predicted_wait(replica: ReplicaView, context: Context) -> float:
    """1 for an idle replica, towards 0 as its slots fill; a replica on which such a prompt takes longer counts as fuller."""
    slots = replica.slots or 64
    first_token_s = replica.first_token_s(context.facts.fresh_size_bytes)
    return 1.0 / (1.0 + replica.in_flight / slots + first_token_s / context.tier.ttft_slo_s)


def prefix(replica: ReplicaView, context: Context) -> float:
    """The share of the prompt that the replica need not compute again, 0 to 1."""
    chain = context.facts.prefix
    if context.prefixes is None or not chain:
        return 0.0
    return context.prefixes.depth(replica.replica, chain) / len(chain)


def zone(replica: ReplicaView, context: Context) -> float:
    """1 in the gateway's own zone."""
    return float(bool(context.zone) and replica.zone == context.zone)


def best(scored: Sequence[tuple[float, ReplicaView]], rng: Rng) -> ReplicaView:
    """The highest score; among equals a random one, so that gateways do not all choose alike."""
    top = max(score for score, _ in scored)
    return rng.choice([replica for score, replica in scored if score >= top - 1e-9])


def power_of_two(scored: Sequence[tuple[float, ReplicaView]], rng: Rng) -> ReplicaView:
    """The better of two random ones."""
    return best(rng.sample(list(scored), min(2, len(scored))), rng)


def candidates(context: Context, rng: Rng) -> Sequence[ReplicaView]:
    """The replica that holds the session; else at most `CANDIDATES` random ones, those that the session prefers, and
    those that know the prompt."""
    routable = context.tier.routable
    bound = routable.named(context.bound) if context.bound else None
    if bound is not None and not_tried(bound, context) and free_slot(bound, context):
        # While it has a place, nothing outweighs the state that it holds.
        return (bound,)
    if len(routable) <= CANDIDATES:
        return routable
    chosen = {r.replica: r for r in rng.sample(routable, CANDIDATES)}
    if not any(not_tried(r, context) and free_slot(r, context) for r in chosen.values()):
        # In a fleet that is nearly full a handful may miss the last place.
        free = next((r for r in routable if not_tried(r, context) and free_slot(r, context)), None)
        chosen.update({} if free is None else {free.replica: free})
    holders = (
        context.prefixes.holders(context.facts.prefix) if context.prefixes and context.facts.prefix else ()
    )
    wanted = {context.bound, *context.preferred, *holders}
    chosen.update((r.replica, r) for name in wanted if name for r in [routable.named(name)] if r is not None)
    return list(chosen.values())


def context_of(facts: Facts, tier: TierView, snapshot: Snapshot, attempts: Sequence[Attempt]) -> Context:
    """What filters and scorers look at. A session without a live binding gets its two choices by rendezvous."""
    bound = snapshot.bindings.get(tier.name, "") if facts.session else ""
    preferred: tuple[str, ...] = ()
    if facts.session and (not bound or tier.routable.named(bound) is None):
        preferred = _choices(facts, tier, snapshot, (bound, *(a.replica for a in attempts)))
        bound = ""
    return Context(
        facts,
        tier,
        bound,
        preferred,
        frozenset(a.replica for a in attempts),
        snapshot.zone,
        snapshot.prefixes,
    )


def _choices(facts: Facts, tier: TierView, snapshot: Snapshot, lost: Iterable[str]) -> tuple[str, ...]:
    """A session's first and second choice. One that had a replica and lost it goes where most of its prompt is, so that
    it need not be computed again, and else out of that replica's zone, which may be lost as a whole; a new one by
    rendezvous alone, or all that begin alike would crowd on one replica."""
    lost_zones = {tier.routable.zone_of(replica) for replica in lost} - {""}
    hashed = [r.replica for r in choices(digest(facts.session), tier.routable, lost_zones)]
    if not snapshot.bindings.get(tier.name) or snapshot.prefixes is None or not facts.prefix:
        return tuple(hashed)
    holders = [r for r in snapshot.prefixes.holders(facts.prefix) if tier.routable.named(r) is not None]
    return tuple(dict.fromkeys((*holders, *hashed)))[:2]


def resolve(name: str) -> Callable[..., object]:
    """A policy function by its name in this module, or by import path (`package.module:function`)."""
    module, _, attribute = name.rpartition(":")
    found = getattr(importlib.import_module(module), attribute, None) if module else globals().get(name)
    if not callable(found):
        raise ValueError(
            f"no routing policy named {name!r}; use a name of gateway.policy.route or module:function"
        )
    return cast("Callable[..., object]", found)


def route_of(filters: Sequence[str], scorers: dict[str, float], picker: str) -> Route:
    """A `Route` from the names in the configuration."""
    return Route(
        filters=tuple(cast(Filter, resolve(f)) for f in filters),
        scorers=tuple((cast(Scorer, resolve(s)), weight) for s, weight in scorers.items()),
        picker=cast(Picker, resolve(picker)),
    )
