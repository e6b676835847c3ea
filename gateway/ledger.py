"""What becomes of requests and attempts, entered where it is counted and shown: metrics, and the shares of each tier."""

import asyncio
from time import perf_counter
from typing import get_args

from gateway.course import Course
from gateway.coverage import names_of
from gateway.policy.decision import Decision, Shed, ShedReason
from gateway.replica import Replica
from gateway.request import Request
from gateway.shares import TierShares
from gateway.telemetry import Telemetry
from gateway.trail import Step, Trail


class Ledger:
    """The books of one model."""

    def __init__(self, model: str, telemetry: Telemetry, shares: TierShares) -> None:
        self._model, self._telemetry, self._shares = model, telemetry, shares
        self._parse_s = telemetry.overhead_s.of(model, "parse")
        self._decide_s = telemetry.overhead_s.of(model, "decide")
        self._dispatch_s = telemetry.overhead_s.of(model, "dispatch")
        self._refuse_s = telemetry.overhead_s.of(model, "refuse")
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Shows what alerts count before there is any: Prometheus sees no increase in a series that begins with its first burst."""
        telemetry = self._telemetry
        for reason in get_args(ShedReason):
            telemetry.count(telemetry.shed, self._model, "critical", reason, by=0.0)
        telemetry.count(telemetry.resumes, self._model, "given_up", by=0.0)

    def answered(self, course: Course, tier: str, degraded: str) -> None:
        """A whole answer went out; `degraded` is the reason when it was a lower tier's."""
        now = course.time()
        self._request(course.request, tier, "degraded" if degraded else "served")
        course.trail.ended("degraded" if degraded else "served", tier, degraded)
        self._shares.add(tier, now)
        if degraded:
            self._telemetry.count(self._telemetry.degraded, self._model, tier, degraded)
            self._shares.degraded(degraded, now)
        for what in names_of(course.told):
            self._telemetry.count(self._telemetry.given_up, self._model, tier, what)
            self._shares.given_up(what, now)
        if course.seam is not None:
            self._telemetry.count(self._telemetry.resumes, self._model, "resumed")
            self._shares.stream("resumed", now)

    def rejected(self, course: Course, tier: str) -> None:
        """A replica found the client's request wrong."""
        self._request(course.request, tier, "rejected")
        course.trail.ended("rejected", tier)

    def refused(self, course: Course, shed: Shed) -> None:
        """No answer; or, of a stream that had begun, no whole one."""
        request, tier = course.request, course.first_tier
        if not course.has_begun:
            self.shed(request, shed, course.trail, tier)
            return
        self._request(request, tier, "broken")
        course.trail.ended("broken", tier, shed.reason)
        self._telemetry.count(self._telemetry.resumes, self._model, "given_up")
        self._shares.stream("given_up", course.time())

    def feature(self, name: str, source: str) -> None:
        """Where one context feature of a request came from."""
        self._telemetry.count(self._telemetry.features, self._model, name, source)
        self._shares.feature(name, source, asyncio.get_running_loop().time())

    def shed(self, request: Request, shed: Shed, trail: Trail, tier: str = "") -> None:
        """A refusal before anything was sent."""
        self._request(request, tier, "shed")
        trail.ended("shed", tier, shed.reason)
        self._telemetry.count(self._telemetry.shed, self._model, request.priority, shed.reason)
        self._shares.shed(shed.reason, asyncio.get_running_loop().time())

    def turned_away(self, request: Request) -> None:
        """A refusal is on its way to its client."""
        if request.received_at:
            self._refuse_s.add(perf_counter() - request.received_at)

    def _request(self, request: Request, tier: str, outcome: str) -> None:
        self._telemetry.count(self._telemetry.requests, self._model, tier, request.priority, outcome)

    def parsed(self, seconds: float) -> None:
        """From a request's last byte to its being known who asks for what."""
        self._parse_s.add(seconds)

    def decided(self, course: Course, decision: Decision, began_at: float) -> None:
        """`began_at` is when the decision began, in `perf_counter` seconds."""
        self._decide_s.add(perf_counter() - began_at)
        course.trail.decided(decision, began_at)

    def dispatched(self, replica: Replica, seconds: float) -> None:
        """From the decision to the request's last byte in the replica's socket."""
        self._dispatch_s.add(seconds)
        replica.dispatches.add(seconds)

    def kv_turn(self, tier: str, durability: str) -> None:
        """A whole answer of a tier that keeps KV blocks is about to end."""
        self._telemetry.count(self._telemetry.kv_turns, self._model, tier, durability)

    def attempt(self, course: Course, step: Step) -> None:
        """An attempt on a replica ended; its tokens count for a client that left, too."""
        telemetry, model, tier = self._telemetry, self._model, step.tier
        telemetry.count(telemetry.attempts, model, tier, step.replica, step.reason or "success")
        if not step.reason:
            telemetry.attempt_s.of(model, tier, step.replica).add(step.ended_at - step.began_at)
        if step.tokens > 0:
            telemetry.count(telemetry.tokens, model, tier, by=step.tokens)
        course.trail.attempted(step)

    def queued(self, course: Course, tier: str, began_at: float) -> None:
        """`began_at` is when the wait began, in `perf_counter` seconds."""
        waited_s = perf_counter() - began_at
        self._telemetry.queue_s.of(self._model, tier, course.facts.priority).add(waited_s)
        course.trail.queued(tier, began_at)

    def first_token(self, course: Course, tier: str, seen_s: float) -> None:
        """`seen_s` is what the client saw: from arrival, failed attempts included."""
        self._telemetry.ttft_s.of(self._model, tier, course.facts.priority).add(seen_s)
        course.trail.first_token(seen_s)
