"""Who may take a free slot, and who may wait for one: by priority, and by what can still be in time.

Slots are kept for critical requests only as far as none comes free before those that are expected lose their patience;
so nothing is kept while slots come free all the time, and a burst can't take all of them at once.
"""

from dataclasses import dataclass
from math import sqrt

from gateway.policy.decision import ShedReason
from gateway.policy.facts import RANK, Facts
from gateway.policy.snapshot import TierView

START_SHARE = (0.8, 0.6, 0.3)
"""By which share of its TTFT SLO a critical, standard, sheddable request must be expected to start, or it doesn't queue."""
LATEST_SHARE = 0.9
"""A request that queues leaves by this share of its SLO at the latest; what is left is for its prefill."""
LATEST_SHARE_ABOVE = 0.75
"""The same where a tier below could serve it: what is left is for that."""
KEEP_PATIENCE_SHARE = 0.4
"""Slots are kept for critical requests so that none waits longer than this share of its SLO."""
SIGMA = 1.0
SPREAD = 2.0
LARGE_TIER = 32
"""Replicas from which on slots come free all the time."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the queue until `until`."""

    until: float


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Why waiting leads nowhere, and in how many seconds a slot would be had."""

    reason: ShedReason
    retry_after_s: float


def may_take(tier: TierView, rank: int, now: float) -> bool:
    """Whether a request of that rank may have a free slot, rather than leave it for those that outrank it."""
    if rank == 0 or len(tier.routable) > LARGE_TIER:
        return True
    patience_s = KEEP_PATIENCE_SHARE * tier.ttft_slo_s
    per_s, waiting = tier.outranking_per_s[rank], tier.queued_ahead[rank - 1]
    most = tier.forecast.kept_at_most(per_s, waiting, patience_s)
    if not most:
        return True
    free = tier.routable.free_slots()
    return free is None or free > most or free > tier.forecast.kept(per_s, waiting, patience_s, now)


def queue_place(tier: TierView, facts: Facts, has_tier_below: bool, now: float) -> Place | NoPlace:
    """A place in the tier's queue, if from there the first token is still in time."""
    rank, slo_s = RANK[facts.priority], tier.ttft_slo_s
    latest_s = (
        LATEST_SHARE_ABOVE * slo_s if has_tier_below else min(LATEST_SHARE * slo_s, slo_s - 1.5 * tier.ttft_s)
    )
    start_s = min(START_SHARE[rank] * slo_s, latest_s)
    until = min(facts.arrived_at + latest_s, facts.deadline)
    left_s = min(facts.arrived_at + start_s, facts.deadline) - now
    ahead = tier.queued_ahead[rank]
    if left_s > 0:
        if rank == 0 and not tier.forecast.service_s:
            return Place(until)
        overtaking = tier.outranking_per_s[rank] * left_s
        nth = ahead + 1 + overtaking
        if rank > 0:
            nth += SIGMA * sqrt(overtaking) + SPREAD * tier.forecast.spread * sqrt(nth)
        if tier.forecast.wait_s(round(nth), now) < left_s:
            return Place(until)
    wait_s = tier.forecast.wait_s(ahead + 1, now)
    if until == facts.deadline:
        return NoPlace("deadline", wait_s)
    return NoPlace("priority" if wait_s < left_s else "queue_full", wait_s)
