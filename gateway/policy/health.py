"""A replica's health as a state machine: probes and passive signals in, state out. No clock and no I/O of its own."""

from dataclasses import dataclass, replace
from typing import Literal

State = Literal["starting", "ready", "suspect", "down", "quarantined", "ejected", "draining"]


@dataclass(frozen=True, slots=True)
class Health:
    """A replica's state and why, with the probes that passed and failed in a row. `since` is monotonic seconds."""

    state: State = "starting"
    reason: str = "not probed yet"
    since: float = 0.0
    passed: int = 0
    failed: int = 0

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"


def after_pass(health: Health, up_after: int, now: float) -> Health:
    """A probe passed all checks. From `starting` one is enough; from anything worse it takes `up_after` in a row."""
    if health.state in ("ready", "draining"):
        return replace(health, passed=health.passed + 1, failed=0)
    if health.state == "starting" or health.passed + 1 >= up_after:
        return Health("ready", "", now, passed=1)
    return replace(health, passed=health.passed + 1, failed=0)


def after_failure(health: Health, reason: str, down_after: int, now: float) -> Health:
    """A probe failed. One is enough for a replica that is suspect already."""
    failed = health.failed + 1
    if health.state in ("down", "draining"):
        return replace(health, reason=reason, passed=0, failed=failed)
    if health.state == "suspect" or failed >= down_after:
        return Health("down", reason, now, failed=failed)
    return replace(health, passed=0, failed=failed)


def after_signal(health: Health, state: State, reason: str, now: float) -> Health:
    """Traffic showed something that doesn't wait for a probe: the replica is out until probes pass again."""
    if health.state in ("down", "quarantined", "ejected", "draining") or health.state == state:
        return replace(health, passed=0)
    return Health(state, reason, now)
