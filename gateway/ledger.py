"""What becomes of requests and attempts, entered where it is counted and shown: metrics, and the shares of each tier."""

import asyncio

from gateway.course import Course
from gateway.coverage import names_of
from gateway.policy.decision import Shed
from gateway.request import Request
from gateway.shares import TierShares
from gateway.telemetry import Telemetry


class Ledger:
    """The books of one model."""

    def __init__(self, model: str, telemetry: Telemetry, shares: TierShares) -> None:
        self._model, self._telemetry, self._shares = model, telemetry, shares

    def answered(self, course: Course, tier: str, degraded: str) -> None:
        """A whole answer went out; `degraded` is the reason when it was a lower tier's."""
        now = asyncio.get_running_loop().time()
        self._request(course.request, tier, "degraded" if degraded else "served")
        self._shares.add(tier, now)
        if degraded:
            self._telemetry.count(self._telemetry.degraded, self._model, tier, degraded)
            self._shares.degraded(degraded, now)
        for what in names_of(course.given_up):
            self._telemetry.count(self._telemetry.given_up, self._model, tier, what)
            self._shares.given_up(what, now)
        if course.seam is not None:
            self._telemetry.count(self._telemetry.resumes, self._model, "resumed")
            self._shares.stream("resumed", now)

    def rejected(self, course: Course, tier: str) -> None:
        """A replica found the client's request wrong."""
        self._request(course.request, tier, "rejected")

    def refused(self, request: Request, shed: Shed, tier: str = "", is_broken: bool = False) -> None:
        """No answer; or, `is_broken`, no whole one."""
        now = asyncio.get_running_loop().time()
        if is_broken:
            self._request(request, tier, "broken")
            self._telemetry.count(self._telemetry.resumes, self._model, "given_up")
            self._shares.stream("given_up", now)
        else:
            self._request(request, tier, "shed")
            self._telemetry.count(self._telemetry.shed, self._model, request.priority, shed.reason)
            self._shares.shed(shed.reason, now)

    def _request(self, request: Request, tier: str, outcome: str) -> None:
        self._telemetry.count(self._telemetry.requests, self._model, tier, request.priority, outcome)

    def attempt(self, tier: str, replica: str, result: str, tokens: int) -> None:
        """An attempt on a replica ended; `tokens` is what it generated, for a client that left too."""
        self._telemetry.count(self._telemetry.attempts, self._model, tier, replica, result)
        if tokens > 0:
            self._telemetry.count(self._telemetry.tokens, self._model, tier, by=tokens)

    def queued(self, tier: str, waited_s: float) -> None:
        self._telemetry.time(self._telemetry.queue_s, waited_s, self._model, tier)

    def first_token(self, tier: str, seen_s: float) -> None:
        """`seen_s` is what the client saw: from arrival, failed attempts included."""
        self._telemetry.time(self._telemetry.ttft_s, seen_s, self._model, tier)
