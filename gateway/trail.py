"""The trail of one request: what was decided and tried, when, and how it ended. Log lines and spans are made of it, later
and on other threads.

Times are those of `time.perf_counter`, in seconds: an event loop's own clock may be as coarse as a millisecond.
"""

from collections.abc import Callable
from random import Random
from time import perf_counter
from types import TracebackType
from typing import Literal

from gateway.errors import ClientError
from gateway.policy.decision import Decision, Serve, Wait
from gateway.request import Request
from gateway.trace_context import TraceContext

Outcome = Literal[
    "served", "degraded", "rejected", "shed", "broken", "refused", "abandoned", "failed"
]  # fmt: skip
"""Answered by the best tier, or by a lower one; the replica found the request wrong; no answer; no whole one; the gateway
found the request wrong; the client left; the gateway's own fault."""


class Step:
    """One part of the way. What does not apply to it is empty.

    Args:
        reason: why a decision fell as it did, or what an attempt failed of; empty for success.
        tokens: that an attempt generated.
        after_tokens: that were there before it: more than none for one that goes on with a broken answer.
        span_id: under which a replica goes on with the trace; 0 where none does.
    """

    __slots__ = (
        "after_tokens", "began_at", "ended_at", "first_token_at", "name", "reason", "replica", "span_id", "tier", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        began_at: float,
        ended_at: float,
        tier: str = "",
        replica: str = "",
        reason: str = "",
        tokens: int = 0,
        after_tokens: int = 0,
        first_token_at: float = 0.0,
        span_id: int = 0,
    ) -> None:
        self.name, self.began_at, self.ended_at = name, began_at, ended_at
        self.tier, self.replica, self.reason = tier, replica, reason
        self.tokens, self.after_tokens = tokens, after_tokens
        self.first_token_at, self.span_id = first_token_at, span_id


class Trail:
    """What one request left behind. Use as a context manager: it is handed on when the request has ended."""

    __slots__ = (
        "_deliver", "_rng", "ended_at", "is_stream", "kind", "model", "outcome", "parent", "priority", "reason", "received_at",
        "request_id", "root", "session", "steps", "tenant", "tier", "ttft_s",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        deliver: "Callable[[Trail], None]",
        rng: Random,
        parent: TraceContext | None,
        root: TraceContext | None,
    ) -> None:
        self._deliver, self._rng, self.parent, self.root = deliver, rng, parent, root
        # Not the request itself: many trails may wait to be written, and a prompt may be large.
        self.kind, self.is_stream, self.model = request.kind, request.stream, request.model
        self.request_id, self.session = request.request_id, request.session
        self.priority, self.tenant = request.priority, request.tenant
        self.received_at = request.received_at
        self.steps: list[Step] = []
        self.outcome: Outcome = "failed"
        self.tier = self.reason = ""
        self.ttft_s = self.ended_at = 0.0

    def __enter__(self) -> "Trail":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, ClientError):
            self.outcome, self.reason = "refused", error.code or f"http_{error.status}"
        elif isinstance(error, Exception):
            self.outcome, self.reason = "failed", type(error).__name__
        elif error is not None:
            self.outcome = "abandoned"
        self.ended_at = perf_counter()
        self._deliver(self)

    @property
    def is_traced(self) -> bool:
        return self.root is not None and self.root.is_sampled

    @property
    def trace_id(self) -> str:
        known = self.root or self.parent
        return known.trace_id if known is not None else ""

    @property
    def attempts(self) -> list[Step]:
        return [step for step in self.steps if step.name == "attempt"]

    @property
    def last_attempt(self) -> Step | None:
        """The attempt that the answer is of, or that was to be; None where the gateway itself answered, or nobody."""
        is_answer = self.outcome in ("served", "degraded")
        for step in reversed(self.steps):
            if step.name == "attempt" and step.tier == self.tier and not (is_answer and step.reason):
                return step
        return None

    @property
    def traceparent(self) -> str:
        """What the client is told of a trace that began here."""
        return self.root.header() if self.root is not None and self.parent is None else ""

    def for_replica(self) -> TraceContext | None:
        """The span of one attempt, with which its replica goes on; None to pass the client's own on."""
        if self.root is None or not self.root.is_sampled:
            return None
        return TraceContext(self.root.trace_id, self._rng.getrandbits(64) | 1, True)

    def admitted(self, request: Request, began_at: float) -> None:
        """The caller is known; `request` is what it may ask for."""
        self.priority, self.tenant = request.priority, request.tenant
        self.steps.append(Step("auth", began_at, perf_counter()))

    def passed(self, name: str, began_at: float) -> None:
        """Any other part of the way."""
        self.steps.append(Step(name, began_at, perf_counter()))

    def decided(self, decision: Decision, began_at: float) -> None:
        tier = decision.tier if isinstance(decision, Serve | Wait) else ""
        self.steps.append(Step("decide", began_at, perf_counter(), tier, "", decision.reason))

    def queued(self, tier: str, began_at: float) -> None:
        self.steps.append(Step("queue", began_at, perf_counter(), tier))

    def attempted(self, step: Step) -> None:
        """An attempt on a replica ended."""
        self.steps.append(step)

    def first_token(self, seen_s: float) -> None:
        """`seen_s` is what the client saw."""
        self.ttft_s = seen_s

    def ended(self, outcome: Outcome, tier: str, reason: str = "") -> None:
        self.outcome, self.tier, self.reason = outcome, tier, reason


class _NoTrail(Trail):
    """Of a request that nobody wants to read about."""

    __slots__ = ()

    def __init__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def traceparent(self) -> str:
        return ""

    def for_replica(self) -> TraceContext | None:
        return None

    def admitted(self, request: Request, began_at: float) -> None:
        pass

    def passed(self, name: str, began_at: float) -> None:
        pass

    def decided(self, decision: Decision, began_at: float) -> None:
        pass

    def queued(self, tier: str, began_at: float) -> None:
        pass

    def attempted(self, step: Step) -> None:
        pass

    def first_token(self, seen_s: float) -> None:
        pass

    def ended(self, outcome: Outcome, tier: str, reason: str = "") -> None:
        pass


NO_TRAIL: Trail = _NoTrail()
