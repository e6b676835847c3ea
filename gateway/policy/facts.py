"""What is known about a request before anything is decided."""

from dataclasses import dataclass
from typing import Literal

from gateway.failure import Failure

Priority = Literal["critical", "standard", "sheddable"]

RANK: dict[Priority, int] = {"critical": 0, "standard": 1, "sheddable": 2}


@dataclass(frozen=True, slots=True)
class Facts:
    """A request as policy sees it. Times are seconds on the monotonic clock that is passed as `now`."""

    model: str
    arrived_at: float
    deadline: float
    priority: Priority = "standard"
    session: str = ""
    """The caller's session id; empty when it named none."""
    lowest_tier: int = 0
    """Index of the lowest tier that the caller accepts."""
    prompt_size_bytes: int = 0
    fresh_size_bytes: int = 0
    """Of the prompt, what no replica is known to have computed before."""
    max_tokens: int = 0
    prefix: tuple[int, ...] = ()
    """Hash chain over the prompt's blocks, longest last."""
    tenant: str = ""
    """Who asks, as far as keys tell; empty without keys."""
    weight: float = 1.0
    """Of the tenant's share among the tenants of its priority."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try that has ended without an answer. `replica` is empty for a tier that the gateway serves itself."""

    tier: str
    replica: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Seam:
    """A stream that has begun and must go on: where it was, and whether another tier may finish it."""

    tier: str
    since: float
    may_change_tier: bool
