"""What policy can answer: serve, wait, or shed. Each carries the reason that headers, logs and metrics then use."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from gateway.policy.snapshot import ReplicaView

ShedReason = Literal["queue_full", "deadline", "rate_limited", "priority", "no_replica", "no_tier"]
CONTENDED: frozenset[ShedReason] = frozenset({"queue_full", "deadline", "rate_limited", "priority"})
"""Reasons for which capacity exists: waiting helps."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Answer by this tier, on this replica (None: the gateway itself). `reason` is empty for the best tier."""

    tier: str
    replica: ReplicaView | None
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Queue for a slot of this tier (of `replica`, when named) until `until` (monotonic seconds), then decide again."""

    tier: str
    until: float
    reason: str
    replica: str = ""


# Those that are made for every request that overload refuses are tuples: they are made in a third of the time.
class Shed(NamedTuple):
    """Refuse. `retry_after_s` is None where waiting does not help."""

    reason: ShedReason
    retry_after_s: float | None
    detail: str = ""


class Skip(NamedTuple):
    """Why one tier does not answer, and when it might."""

    reason: ShedReason | str
    retry_after_s: float | None = None


Decision = Serve | Wait | Shed
