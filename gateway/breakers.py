"""Circuit breakers for replicas and dependencies, on pybreaker's states, storage, listeners and errors.

pybreaker's own call path is synchronous, holds a lock while it runs, counts consecutive failures only and lets everybody
through when half open; none of that fits a gateway. So the state lives in a pybreaker storage and changes are told to
pybreaker listeners, while this module decides: over a window, by failures and by slowness, with a bounded number of
probes, and with a generation in each pass, so that what began before the breaker opened has no vote afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from random import Random

import pybreaker

from gateway.policy.outlier import ejection_s
from gateway.policy.window import OutcomeWindow
from gateway.specs import BreakerSpec


class Outcome(Enum):
    """How a call ended, for those who learn from it."""

    SUCCESS = "success"
    FAILURE = "failure"
    SLOW = "slow"
    """It answered, but later than promised."""
    BACKPRESSURE = "backpressure"
    """429 or 503: fewer, not ill."""
    NEUTRAL = "neutral"
    """The client's mistake, or the client left: says nothing about the replica."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The right to make one call; it is given back with the call's outcome."""

    generation: int
    is_probe: bool


class Breaker:
    """One breaker. Times are monotonic seconds, passed in.

    Args:
        name: of what it guards, for listeners.
        spec: window, shares, probes and back-off.
        listeners: pybreaker listeners; `state_change` is called with this object, the old and the new state.
    """

    def __init__(
        self,
        name: str,
        spec: BreakerSpec,
        rng: Random,
        listeners: Sequence[pybreaker.CircuitBreakerListener] = (),
    ) -> None:
        self.name = name
        self._spec, self._rng, self._listeners = spec, rng, listeners
        self._storage = pybreaker.CircuitMemoryStorage(pybreaker.STATE_CLOSED)
        self._state: str = pybreaker.STATE_CLOSED
        """As in the storage; asked for several times a request."""
        self._window = OutcomeWindow(spec.window_s)
        self._generation = 0
        self._opened_in_a_row = 0
        self._reopen_at = 0.0
        self._probes_out = 0
        self._probes_passed = 0

    def retune(self, spec: BreakerSpec) -> None:
        """Goes by another spec from now on; what it has counted, and how long it is open, stays."""
        self._spec, self._window.window_s = spec, spec.window_s

    @property
    def state(self) -> str:
        """`closed`, `open` or `half-open`."""
        return self._state

    def seen_as(self, now: float) -> str:
        """The state as who looks on should read it: one whose back-off is over waits for nothing but a request to try."""
        is_waiting = self._state == pybreaker.STATE_OPEN and now >= self._reopen_at
        return pybreaker.STATE_HALF_OPEN if is_waiting else self._state

    def admits(self, now: float) -> bool:
        """Whether `enter` would let a call through. Changes nothing."""
        if self.state == pybreaker.STATE_OPEN:
            return now >= self._reopen_at
        return (
            self.state == pybreaker.STATE_CLOSED or self._probes_out + self._probes_passed < self._spec.probes
        )

    def enter(self, now: float) -> Pass:
        """Takes a pass for one call.

        Raises:
            pybreaker.CircuitBreakerError: it is open, or all probes of a half-open one are out.
        """
        if not self.admits(now):
            raise pybreaker.CircuitBreakerError(f"{self.name} is {self.state}")
        if self.state == pybreaker.STATE_OPEN:
            self._become(pybreaker.STATE_HALF_OPEN)
        is_probe = self.state == pybreaker.STATE_HALF_OPEN
        self._probes_out += is_probe
        return Pass(self._generation, is_probe)

    def leave(self, pass_: Pass, outcome: Outcome, now: float) -> None:
        """Gives a pass back. A pass of an earlier generation changes nothing."""
        if pass_.generation != self._generation:
            return
        if pass_.is_probe:
            self._learn_from_probe(outcome, now)
        elif outcome in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.SLOW):
            self._window.add(now, outcome is Outcome.FAILURE, outcome is Outcome.SLOW)
            spec = self._spec
            if self._window.is_ill(now, spec.min_count, spec.failure_share, spec.slow_share):
                self._open(now)

    @property
    def reopen_at(self) -> float:
        """When an open breaker lets its first probe through."""
        return self._reopen_at

    def heed(self, until: float, now: float) -> None:
        """Another gateway's breaker for the same is open until then. Believed, unless what is seen here says otherwise."""
        if self.state == pybreaker.STATE_CLOSED and not self._window.is_proof(now, self._spec.min_count):
            self._reopen_at = until
            self._become(pybreaker.STATE_OPEN)
        else:
            self.defer(until)

    def defer(self, until: float) -> None:
        """Another gateway probes now: an open breaker stays so for a while."""
        if self.state == pybreaker.STATE_OPEN:
            self._reopen_at = max(self._reopen_at, until)

    def heed_closed(self, now: float) -> None:
        """Another gateway's probes passed: this one need not wait for its own back-off to try."""
        if self.state == pybreaker.STATE_OPEN:
            self._reopen_at = min(self._reopen_at, now)

    def _learn_from_probe(self, outcome: Outcome, now: float) -> None:
        self._probes_out -= 1
        if outcome in (Outcome.FAILURE, Outcome.SLOW):
            self._open(now)
        elif outcome is Outcome.SUCCESS:
            self._probes_passed += 1
            if self._probes_passed >= self._spec.probes:
                self._opened_in_a_row = 0
                self._become(pybreaker.STATE_CLOSED)

    def _open(self, now: float) -> None:
        self._opened_in_a_row += 1
        spec = self._spec
        self._reopen_at = now + ejection_s(
            self._opened_in_a_row, spec.backoff_s, spec.backoff_max_s, self._rng
        )
        self._storage.opened_at = datetime.now(UTC)
        self._become(pybreaker.STATE_OPEN)

    def _become(self, state: str) -> None:
        old, self._state, self._storage.state = self._state, state, state
        self._generation += 1
        self._probes_out = self._probes_passed = 0
        self._window.clear()
        for listener in self._listeners:
            listener.state_change(self, old, state)
