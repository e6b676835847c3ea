"""The one decision of the request path: which tier and replica answer, or whether to wait, or to refuse.

`decide` is pure. A failed attempt goes back into it with a longer `attempts`, so that retry, failover and degradation
are one code path under one deadline and one budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import cast

from gateway.policy.admission import is_hopeless, may_take, queue_place
from gateway.policy.decision import CONTENDED, Decision, Serve, Shed, ShedReason, Skip, Wait
from gateway.policy.facts import RANK, Attempt, Facts, Seam
from gateway.policy.rendezvous import digest
from gateway.policy.rng import Rng
from gateway.policy.route import Context, Route, candidates, context_of
from gateway.policy.snapshot import Snapshot, TierView

AFFINITY_WAIT_SHARE = 0.4
"""A turn waits this share of the SLO for the replica that holds its session before it goes elsewhere."""
MOST_AT_A_BEDSIDE = 1000
"""Requests that wait for a tier that wakes; how fast it will be nobody knows yet."""
SEAM_WAIT_S = 0.4
"""A broken stream waits this long for its tier, then goes on in a replica that is full, or in another tier."""
SEAM_HOPELESS_S = 10.0
"""The same where there is neither, but a replica that starts, or is only suspected."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one request may go."""

    max_attempts: int = 6


def decide(
    facts: Facts,
    snapshot: Snapshot,
    attempts: Sequence[Attempt],
    now: float,
    rng: Rng,
    route: Route,
    limits: Limits = Limits(),
) -> Decision:
    """The best tier that can meet the deadline and that the caller accepts; else to wait for it; else the reason why not."""
    if now >= facts.deadline:
        return Shed("deadline", None, "the deadline passed before the answer was whole")
    skips: list[Skip] = []
    held: list[TierView] = []
    accepted = snapshot.tiers[: facts.lowest_tier + 1]
    for index, tier in enumerate(accepted):
        below = accepted[index + 1 :]
        if below and not _is_admitted(tier, facts, snapshot, rng):
            held.append(tier)
            skips.append(Skip(tier.held_because))
            continue
        verdict = _consider(tier, below, facts, snapshot, attempts, now, rng, route, limits)
        if not isinstance(verdict, Skip):
            reason = skips[0].reason if skips else ""
            return _because(verdict, reason)
        skips.append(verdict)
    # A share says what a tier should have. Rather than refuse, it has more.
    for tier in held:
        verdict = _consider(tier, (), facts, snapshot, attempts, now, rng, route, limits)
        if not isinstance(verdict, Skip):
            return verdict
        skips.append(verdict)
    return _wait_for_one_that_wakes(accepted, facts) or _shed(skips)


def _wait_for_one_that_wakes(accepted: Sequence[TierView], facts: Facts) -> Wait | None:
    """The best tier that only sleeps, when nothing else is left: it wakes because somebody asks."""
    asleep = (tier for tier in accepted if tier.is_asleep and max(tier.queued_ahead) < MOST_AT_A_BEDSIDE)
    tier = next(asleep, None)
    return None if tier is None else Wait(tier.name, facts.deadline, "")


def decide_seam(
    facts: Facts,
    snapshot: Snapshot,
    attempts: Sequence[Attempt],
    seam: Seam,
    now: float,
    rng: Rng,
    route: Route,
    limits: Limits = Limits(),
) -> Decision:
    """Where a stream that broke goes on: its own tier first, full or not; another only where the caller allows it.

    `attempts` are those since the stream last advanced.
    """
    if now >= facts.deadline:
        return Shed("deadline", None, "the deadline passed before the stream could go on")
    tier = next((t for t in snapshot.tiers if t.name == seam.tier), None)
    if len(attempts) >= limits.max_attempts:
        return Shed("no_replica", 1.0, "no replica could go on with the stream")
    if tier is None or not tier.continues:
        return _other_tier(tier, facts, snapshot, attempts, seam, rng, route)
    context = context_of(facts, tier, snapshot, attempts)
    options = candidates(context, rng)
    if (replica := route.pick(options, context, rng)) is not None:
        return Serve(tier.name, replica, "resumed")
    until = min(seam.since + SEAM_WAIT_S, facts.deadline)
    if now < until:
        # A slot may come free, or a replica that is only suspect may prove well.
        return Wait(tier.name, until, "resumed")
    # With nothing else left, the replica that broke the stream may have it again, if it is still in rotation.
    untried = [r for r in options if r.replica not in context.tried] or options
    if untried:
        return Serve(tier.name, min(untried, key=lambda r: r.in_flight / (r.slots or 64)), "resumed")
    decision = _other_tier(tier, facts, snapshot, attempts, seam, rng, route)
    hopeless_at = min(seam.since + SEAM_HOPELESS_S, facts.deadline)
    if isinstance(decision, Shed) and tier.starting and now < hopeless_at:
        return Wait(tier.name, hopeless_at, "resumed")
    return decision


def _other_tier(
    tier: TierView | None,
    facts: Facts,
    snapshot: Snapshot,
    attempts: Sequence[Attempt],
    seam: Seam,
    rng: Rng,
    route: Route,
) -> Serve | Shed:
    """A lower tier that goes on with what this one began, where the caller allows it; for one that a reload has taken
    out, the best that is left."""
    if not seam.may_change_tier:
        return Shed("no_replica", 1.0, "no replica of the tier is left to go on with the stream")
    first = 0 if tier is None else snapshot.tiers.index(tier) + 1
    below = snapshot.tiers[first : facts.lowest_tier + 1]
    for lower in (t for t in below if t.has_replicas and t.continues and not _declined(t.name, attempts)):
        lower_context = context_of(facts, lower, snapshot, attempts)
        replica = route.pick(candidates(lower_context, rng), lower_context, rng)
        if replica is not None:
            return Serve(lower.name, replica, "no_replica")
    return Shed("no_replica", 1.0, "no replica that the caller accepts is left to go on with the stream")


def _is_admitted(tier: TierView, facts: Facts, snapshot: Snapshot, rng: Rng) -> bool:
    """Whether the ladder lets this request try the tier. A session stays where it is as long as the tier has any share."""
    part = tier.admits[RANK[facts.priority]]
    if part >= 1.0 or snapshot.promised == tier.name:
        return True
    if facts.session:
        is_bound = tier.name in snapshot.bindings and max(tier.admits) > 0.0
        return is_bound or digest(facts.session) < part * 2.0**64
    return rng.random() < part


def _consider(
    tier: TierView,
    below: Sequence[TierView],
    facts: Facts,
    snapshot: Snapshot,
    attempts: Sequence[Attempt],
    now: float,
    rng: Rng,
    route: Route,
    limits: Limits,
) -> Serve | Wait | Skip:
    if not tier.has_replicas:
        tried = any(a.tier == tier.name for a in attempts)
        return Skip("no_tier") if tried else Serve(tier.name, None, "")
    if not attempts and route.needs_free_slot and tier.routable.is_full():
        # The same as below, in a fraction of the time: what overload asks of a gateway all the time.
        place = queue_place(tier, facts, _has_replicas(below), now)
        return _beside_its_state(place, tier, facts, snapshot, now) if facts.session else place
    if attempts and (declined := _declined(tier.name, attempts)):
        return Skip(declined)
    tries = sum(bool(a.replica) for a in attempts)
    if tries and (not snapshot.may_retry or tries >= limits.max_attempts):
        return Skip(_last_failure(tier, attempts))
    context = context_of(facts, tier, snapshot, attempts)
    options = candidates(context, rng)
    if not any(r.replica not in context.tried for r in options):
        return _until_started(tier, below, facts, attempts) or Skip(_last_failure(tier, attempts), 1.0)
    if (until := _affinity_wait(context, facts, now)) is not None:
        return Wait(tier.name, until, "", context.bound)
    if is_hopeless(tier, facts, now):
        return Skip("deadline")
    replica = route.pick(options, context, rng)
    if replica is not None and (snapshot.promised == tier.name or may_take(tier, RANK[facts.priority], now)):
        return Serve(tier.name, replica, "")
    return queue_place(tier, facts, _has_replicas(below), now)


def _until_started(
    tier: TierView, below: Sequence[TierView], facts: Facts, attempts: Sequence[Attempt]
) -> Wait | None:
    """A tier whose replicas are only starting is waited for as long as the caller does, by as many as it will have places
    for; unless another can serve, or something was tried."""
    if attempts or tier.queued_ahead[-1] >= tier.starting:
        return None
    if any(not t.has_replicas or len(t.routable) for t in below):
        return None
    return Wait(tier.name, min(facts.deadline, tier.starting_until), "")


def _beside_its_state(
    place: Wait | Skip, tier: TierView, facts: Facts, snapshot: Snapshot, now: float
) -> Wait | Skip:
    """A place in the queue, for a while at the session's own replica. Who has no place waits for nothing."""
    bound = snapshot.bindings.get(tier.name, "")
    until = _own_replica_until(tier, facts)
    if isinstance(place, Skip) or tier.routable.named(bound) is None or now >= until:
        return place
    return replace(place, until=min(place.until, until), replica=bound)


def _declined(tier: str, attempts: Sequence[Attempt]) -> str:
    """Why the tier as a whole can't have this request, whichever replica is asked; empty when it may."""
    return next((a.failure for a in attempts if a.tier == tier and not a.replica), "")


def _has_replicas(tiers: Sequence[TierView]) -> bool:
    for tier in tiers:  # noqa: SIM110 - a generator costs more than all that it looks at
        if tier.has_replicas:
            return True
    return False


def _last_failure(tier: TierView, attempts: Sequence[Attempt]) -> str:
    failures = [a.failure for a in attempts if a.tier == tier.name]
    return failures[-1] if failures else "no_replica"


def _affinity_wait(context: Context, facts: Facts, now: float) -> float | None:
    """Until when to wait for the session's own replica; None when it is free, gone, or not worth it."""
    bound = context.tier.routable.named(context.bound) if context.bound else None
    if (
        bound is None
        or bound.replica in context.tried
        or bound.slots is None
        or bound.in_flight < bound.slots
    ):
        return None
    until = _own_replica_until(context.tier, facts)
    return until if now < until else None


def _own_replica_until(tier: TierView, facts: Facts) -> float:
    """How long a turn waits for the replica that holds its session."""
    return min(facts.arrived_at + AFFINITY_WAIT_SHARE * tier.ttft_slo_s, facts.deadline)


def _because(verdict: Serve | Wait, reason: str) -> Serve | Wait:
    if not reason:
        return verdict
    return replace(verdict, reason=reason)


def _shed(skips: Sequence[Skip]) -> Shed:
    """429 when some accepted tier is only contended (replicas that push back are full, not ill), 503 when none can serve."""
    reason, after_s, is_out = "", inf, False
    for skip in skips:
        if skip.reason in CONTENDED or skip.reason == "backpressure":
            after_s = min(after_s, skip.retry_after_s or 1.0)
            reason = skip.reason if reason in ("", skip.reason) else "queue_full"
        elif skip.reason != "no_tier":
            is_out = True
    if reason:
        told = cast(ShedReason, reason) if reason in ("deadline", "priority") else "queue_full"
        return Shed(told, after_s, "every tier that the caller accepts is full")
    if is_out:
        return Shed("no_replica", 1.0, "no replica of a tier that the caller accepts can serve")
    return Shed("no_tier", None, "no tier that the caller accepts can answer this request")
