"""What is learnt from an attempt: the speed of its first token, and from how it ended who is well, slow or out."""

from dataclasses import dataclass
from time import perf_counter

from gateway.breakers import Outcome
from gateway.course import Course
from gateway.dispatch import Exchange, PushedBack, TokenIdsRefused
from gateway.failure import ExchangeFailed
from gateway.fleet import Fleet
from gateway.hedge import LOST
from gateway.ledger import Ledger
from gateway.policy.decision import Serve
from gateway.policy.facts import Attempt, Seam
from gateway.policy.prefix import BLOCK_BYTES
from gateway.replica import Replica
from gateway.reply import Served
from gateway.sessions import Sessions
from gateway.tier import Permit

BACKPRESSURE_S = 0.5
"""How long a replica that pushed back without a Retry-After gets nothing new."""
GONE_AT_ONCE = frozenset({"refused", "unreachable", "reset", "cut"})
"""Failures after which a replica is out until a probe says otherwise."""

DECLINED = frozenset({"context", "budget"})
"""Why a tier does not answer a request, though its replicas could be asked."""


@dataclass(slots=True)
class Lessons:
    """Teaches the fleet, the sessions and the ledger of one model."""

    fleet: Fleet
    sessions: Sessions
    ledger: Ledger

    def first_token(
        self, course: Course, tier: str, replica: Replica, exchange: Exchange, now: float
    ) -> None:
        """How long the answer's first token took: for routing, patience and forecasts, and for who watches."""
        if course.race is not None:
            course.race.win(exchange)
        exchange.first_token()
        self.ledger.dispatched(replica, exchange.dispatch_s)
        course.first_token_at = perf_counter()
        course.ttft_s = now - exchange.sent_at
        fresh_bytes = course.facts.prompt_size_bytes
        if prefix := course.facts.prefix:
            fresh_bytes -= self.fleet.prefixes.depth(replica.replica, prefix) * BLOCK_BYTES
        if course.seam is None:
            replica.prefill.add(fresh_bytes, course.ttft_s, now)
            self.fleet.tier(tier).prefill.add(fresh_bytes, course.ttft_s, now)
        replica.on_first_token(course.ttft_s)
        replica.learn(course.ttft_s, exchange.sent_at, now)
        self.fleet.tier(tier).ttfts.add(course.ttft_s)
        facts = course.facts
        if facts.prefix:
            size_bytes = facts.prompt_size_bytes
            self.fleet.routed(replica.replica, facts.prefix, course.journal.prompt_ids, size_bytes)
        if course.seam is None:
            self.ledger.first_token(course, tier, now - course.facts.arrived_at)
            # What another tier's failures cost says nothing about this one.
            came_late = any(attempt.tier != tier for attempt in course.attempts)
            own_s = course.ttft_s if came_late else now - course.facts.arrived_at
            live = self.fleet.tier(tier)
            live.recent.first_token(live.spec.slo.against_promise_s(own_s, course.facts.priority), now)

    def succeeded(self, course: Course, served: Served, permit: Permit) -> Outcome:
        """A whole answer: the session stays where it was given, and the breaker learns whether it came in time."""
        tier, replica = self.fleet.tier(served.tier), permit.replica
        bound = course.bindings.get(tier.name, "")
        is_lost = bool(bound) and self.fleet.is_lost(tier.name, bound)
        self.sessions.bind(course.turn, tier.name, replica.replica, is_lost)
        self.ledger.answered(course, tier.name, served.degraded)
        return Outcome.SLOW if course.ttft_s > tier.spec.slo.ttft_s else Outcome.SUCCESS

    def failed(
        self, course: Course, decision: Serve, permit: Permit, failed: ExchangeFailed, tokens_before: int
    ) -> None:
        """Learns from a failed attempt, and prepares the next one."""
        now, replica = course.time(), permit.replica
        if course.journal.tokens > tokens_before:
            # It made progress, so this is a new incident: what failed before may be well again.
            course.attempts.clear()
        if failed.failure == LOST:
            return
        if isinstance(failed, TokenIdsRefused):
            replica.takes_token_ids = False
            return
        by = "" if failed.failure in DECLINED else replica.replica
        course.attempts.append(Attempt(decision.tier, by, failed.failure))
        if failed.failure == "first_token_timeout":
            # It takes at least as long.
            prefill = self.fleet.tier(decision.tier).prefill
            prefill.add(course.facts.fresh_size_bytes, now - permit.since, now)
        if course.has_begun and failed.failure != "deadline":
            course.seam = Seam(course.first_tier, now, may_change_tier=course.asked.degradation != "never")
        if isinstance(failed, PushedBack):
            replica.learn(now - permit.since, permit.since, now, was_dropped=True)
            replica.back_off(now + (BACKPRESSURE_S if failed.retry_after_s is None else failed.retry_after_s))
        elif failed.failure in GONE_AT_ONCE or (
            failed.failure == "first_token_timeout" and replica.last_token_at < permit.since
        ):
            replica.signal("suspect", failed.failure, now)
