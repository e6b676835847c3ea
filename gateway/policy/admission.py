"""Who may take a free slot, and who may wait for one: by priority, and by what can still be in time.

Slots are kept for critical requests only as far as none comes free before those that are expected lose their patience;
so nothing is kept while slots come free all the time, and a burst can't take all of them at once.
"""

from math import ceil, sqrt

from gateway.policy.decision import Skip, Wait
from gateway.policy.facts import RANK, Facts
from gateway.policy.snapshot import LOOKED_AT, TierView

START_SHARE = (0.95, 0.7, 0.7)
"""By which share of its TTFT SLO a critical, standard, sheddable request must be expected to start, or it doesn't queue."""
START_SHARE_ABOVE = (0.75, 0.6, 0.3)
"""The same where a tier below could serve it: who counts least goes down first."""
LATEST_SHARE = (0.95, 0.88, 0.88)
"""A request that queues leaves by this share of its SLO at the latest; what is left is for its prefill."""
LATEST_SHARE_ABOVE = 0.75
SIGMA = 1.5
"""Standard deviations of chance that are allowed for in how many will overtake, and how evenly slots come free.

A refusal after waiting is the worst of answers: with these, 3 in 1,000 refusals come late at three times the capacity, and
1 in 100 requests is refused in vain at 0.9 times.
"""
KEEP_PATIENCE_SHARE = 0.4
"""Slots are kept for critical requests so that none waits longer than this share of its SLO."""
RESERVED_SHARE = 0.1
"""So many slots are kept at least while none is about to come free, and half of them at most: what is kept is not used."""
PREFILL_ALLOWED = 1.5
"""Times of a likely prefill that are left for it."""
LONG_PROMPT_SHARE = 0.25
"""A long prompt may wait for this share of the SLO, if its prefill leaves that, or is longer than the SLO by itself."""
MIN_RETRY_S = 0.1


def may_take(tier: TierView, rank: int, now: float) -> bool:
    """Whether a request of that rank may have a free slot, rather than leave it for those that outrank it."""
    if rank == 0 or len(tier.routable) > LOOKED_AT:
        return True
    per_s, free = tier.outranking_per_s[rank], tier.routable.free_slots()
    if not per_s or free is None:
        return True
    forecast, patience_s = tier.forecast, KEEP_PATIENCE_SHARE * tier.ttft_slo_s
    slots, waiting = free + len(forecast.started_at), tier.queued_ahead[rank - 1]
    # A burst is faster than any measure of it, so some are kept though nobody is expected.
    least = ceil(RESERVED_SHARE * slots) if forecast.next_s(now) > patience_s else 0
    if free > max(least, forecast.kept_at_most(per_s, waiting, patience_s)):
        return True
    return free > min(max(least, forecast.kept(per_s, waiting, patience_s, now)), slots // 2)


def queue_place(tier: TierView, facts: Facts, has_tier_below: bool, now: float) -> Wait | Skip:
    """A place in the tier's queue, if from there the first token is still in time; else when a slot would be had."""
    rank, slo_s = RANK[facts.priority], tier.slo_s(RANK[facts.priority])
    expected_s = tier.prefill.expected_s(facts.fresh_size_bytes, now) if tier.prefill is not None else None
    in_time_s = _in_time_s(tier, slo_s, expected_s)
    if has_tier_below:
        start_s, latest_s = START_SHARE_ABOVE[rank] * slo_s, LATEST_SHARE_ABOVE * slo_s
        # What most prompts take is allowed for in these shares; of long ones, more.
        latest_s = min(latest_s, in_time_s) if expected_s is not None else latest_s
    else:
        latest_s = min(LATEST_SHARE[rank] * slo_s, in_time_s)
        start_s = START_SHARE[rank] * slo_s
    start_s = min(start_s, latest_s)
    waited_s, deadline_s = now - facts.arrived_at, facts.deadline - now - (expected_s or 0.0)
    left_s = min(start_s - waited_s, deadline_s)
    ahead = _ahead(tier, rank, facts, left_s, now)
    wait_s = tier.forecast.wait_s(ahead + 1, now, _beginning(tier))
    if left_s > 0 and _is_in_time(tier, rank, ahead, wait_s, left_s, now):
        return Wait(tier.name, now + min(latest_s - waited_s, deadline_s), "")
    retry_s = max(MIN_RETRY_S, wait_s)
    if deadline_s < latest_s - waited_s:
        return Skip("deadline", retry_s)
    return Skip("priority" if retry_s < left_s else "queue_full", retry_s)


def is_hopeless(tier: TierView, facts: Facts, now: float) -> bool:
    """Whether the prompt is so long that its first token would come after the caller's deadline, even from a free slot."""
    if tier.prefill is None:
        return False
    expected_s = tier.prefill.expected_s(facts.fresh_size_bytes, now)
    return expected_s is not None and now + expected_s > facts.deadline


def _in_time_s(tier: TierView, slo_s: float, expected_s: float | None) -> float:
    """How late such a prompt may get its slot, so that its first token is in time."""
    if expected_s is None or tier.prefill is None:
        return slo_s - PREFILL_ALLOWED * tier.ttft_s
    likely_s = expected_s + tier.prefill.allowance_s
    # For one that takes longer than the SLO no place is early enough: the SLO is not about it.
    room_s = slo_s if expected_s >= slo_s else slo_s - expected_s
    return max(slo_s - PREFILL_ALLOWED * likely_s, min(LONG_PROMPT_SHARE * slo_s, room_s))


def _ahead(tier: TierView, rank: int, facts: Facts, left_s: float, now: float) -> int:
    """How many wait before a newcomer. Tenants that want more than their share wait longer for it."""
    if tier.line is None or not facts.tenant:
        return tier.queued_ahead[rank]
    return tier.line.ahead_of(rank, facts.tenant, facts.weight, max(0.0, left_s), now)


def _is_in_time(tier: TierView, rank: int, ahead: int, wait_s: float, left_s: float, now: float) -> bool:
    """Whether a newcomer gets a slot in `left_s`, even if somewhat more than the usual number overtake it."""
    if rank == 0:
        # Nobody overtakes it; and as long as nobody knows how long answers take, waiting costs nothing better.
        return not tier.forecast.service_s or wait_s < left_s
    if wait_s >= left_s:
        return False
    nth = ahead + 1.0
    overtaking = tier.outranking_per_s[rank] * left_s
    nth += overtaking + SIGMA * (sqrt(overtaking) + tier.forecast.spread * sqrt(nth + overtaking))
    return tier.forecast.wait_s(round(nth), now, _beginning(tier)) < left_s


def _beginning(tier: TierView) -> int:
    """Who has a slot and has not been seen to begin: in a burst of short answers, most of them."""
    return 0 if tier.line is None else tier.line.promised
