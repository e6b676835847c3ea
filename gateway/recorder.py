"""Begins a trail for each request that somebody wants to read about, and hands it on when the request has ended."""

from collections.abc import Callable
from random import Random

from gateway.request import Request
from gateway.specs import TracingSpec
from gateway.trace_context import TraceContext, read_traceparent
from gateway.trail import NO_TRAIL, Trail

TakeTrail = Callable[[Trail], None]


class Recorder:
    """Decides which requests leave a trail. With neither a log nor a collector, none does, at no cost.

    Args:
        log: takes the trail of every request, or None.
    """

    def __init__(self, log: TakeTrail | None = None) -> None:
        # Ids must differ between processes whatever the gateway's own randomness is seeded with.
        self._log, self._rng = log, Random()
        self._spans: TakeTrail | None = None
        self._ratio = 0.0

    def trace_to(self, spans: TakeTrail | None, tracing: TracingSpec) -> None:
        """Where the trails of sampled requests go from now on."""
        self._spans, self._ratio = spans, tracing.ratio

    def begin(self, request: Request) -> Trail:
        """A request came in."""
        if self._spans is None and self._log is None:
            return NO_TRAIL
        parent = read_traceparent(request.traceparent)
        root = None if self._spans is None else self._root(parent)
        if self._log is None and (root is None or not root.is_sampled):
            return NO_TRAIL
        return Trail(request, self._deliver, self._rng, parent, root)

    def _root(self, parent: TraceContext | None) -> TraceContext | None:
        """The gateway's own span. A caller that traces decides; otherwise chance does."""
        if parent is None and self._rng.random() >= self._ratio:
            return None
        bits = self._rng.getrandbits
        trace_id = parent.trace_id if parent is not None else f"{bits(128) | 1:032x}"
        return TraceContext(trace_id, bits(64) | 1, parent is None or parent.is_sampled)

    def _deliver(self, trail: Trail) -> None:
        if self._log is not None:
            self._log(trail)
        if self._spans is not None and trail.is_traced:
            self._spans(trail)
