"""What a supervisor decides: how long to wait before a restart, and when an engine that still runs must go.

Pure: times come in as numbers of any steady clock.
"""

import random
from dataclasses import dataclass, replace

from replicas.engine_load import EngineLoad
from replicas.exit_reason import ExitReason
from replicas.probe import ProbeResult


@dataclass(frozen=True, slots=True)
class Patience:
    """A supervisor's times, in seconds."""

    check_every_s: float = 2.0
    check_timeout_s: float = 5.0
    right_every_s: float = 30.0
    right_timeout_s: float = 15.0
    first_right_timeout_s: float = 60.0
    """For the first answer after a start, which warms the engine up."""
    hung_after_s: float = 20.0
    """Without an answer, or without a token while one is due, before an engine counts as hung."""
    wrong_after: int = 2
    """Wrong answers in a row; more than one, because rounding may differ once under load."""
    backoff_s: float = 1.0
    backoff_max_s: float = 30.0
    stable_s: float = 120.0
    """Ready for that long, an engine's past failures are forgotten."""
    stop_grace_s: float = 5.0
    drain_settle_s: float = 1.0
    """Before a draining engine may count as idle: requests sent before the news are still on their way."""


def backoff_s(failures: int, patience: Patience, rng: random.Random) -> float:
    """Seconds to wait after the n-th failure in a row (n ≥ 1): doubling, jittered down by up to a quarter."""
    longest_s = min(patience.backoff_s * 2.0 ** min(failures - 1, 30), patience.backoff_max_s)
    return longest_s * rng.uniform(0.75, 1.0)


def failures_after(failures: int, ready_for_s: float, reason: ExitReason, patience: Patience) -> int:
    """The count of failures in a row after one more, by how long the engine had been ready before it."""
    if ready_for_s >= patience.stable_s:
        return 1
    # What a wrong config does once it does every time: no use in trying it fast.
    return failures + (8 if reason.kind == "bad_config" else 1)


@dataclass(frozen=True, slots=True)
class Vitals:
    """The last signs of health of an engine that has been ready."""

    answered_at: float
    """When it last answered its health check with 200."""
    right_checked_at: float
    """When the known prompt was last sent."""
    due_since: float | None = None
    """Since when a token is due: it has sequences, or the known prompt, and got on with nothing."""
    progress: float = 0.0
    wrongs: int = 0
    last_fault: str = ""

    def with_health(self, health: ProbeResult, now: float) -> "Vitals":
        return replace(self, answered_at=now) if health.is_ok else replace(self, last_fault=health.reason)

    def with_load(self, load: EngineLoad | None, now: float) -> "Vitals":
        if load is None:
            return self
        if load.progress != self.progress:
            return replace(self, progress=load.progress, due_since=None)
        if load.running > 0 and self.due_since is None:
            return replace(self, due_since=now)
        return self

    def with_right(self, right: ProbeResult, sent_at: float) -> "Vitals":
        checked = replace(self, right_checked_at=sent_at, last_fault=right.reason)
        if right.kind == "ok":
            return replace(checked, due_since=None, wrongs=0)
        if right.kind == "wrong":
            # A wrong answer is one all the same: such an engine does not hang.
            return replace(checked, due_since=None, wrongs=self.wrongs + 1)
        if right.is_backpressure:
            return replace(checked, due_since=None)
        return replace(checked, due_since=sent_at if self.due_since is None else self.due_since)


def must_go(vitals: Vitals, now: float, patience: Patience) -> ExitReason | None:
    """Why an engine that runs must be restarted; None while there is no reason. Being busy is none."""
    if vitals.wrongs >= patience.wrong_after:
        return ExitReason("wrong", f"wrong {vitals.wrongs} times in a row: {vitals.last_fault}")
    if (silent_s := now - vitals.answered_at) >= patience.hung_after_s:
        return ExitReason("hung", f"not healthy for {silent_s:.1f} s: {vitals.last_fault}")
    if vitals.due_since is not None and (stuck_s := now - vitals.due_since) >= patience.hung_after_s:
        return ExitReason("hung", f"no token for {stuck_s:.1f} s: {vitals.last_fault or 'stuck sequences'}")
    return None


def is_right_check_due(vitals: Vitals, now: float, patience: Patience) -> bool:
    """Whether to send the known prompt: at its interval, and at once when only it can tell ill from busy."""
    is_stuck = vitals.due_since is not None and now - vitals.due_since >= patience.hung_after_s / 2
    return vitals.wrongs > 0 or is_stuck or now - vitals.right_checked_at >= patience.right_every_s
