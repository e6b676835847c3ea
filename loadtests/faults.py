"""The faults that the simulated engine can be told to have, and which requests they hit."""

import random
from dataclasses import dataclass, fields

KINDS: dict[str, str] = {
    "none": "healthy",
    "die": "ends its own process with SIGKILL, at once or when a sequence reaches `after_tokens`",
    "hang": "never answers; with `after_tokens`, streams go silent there; with `health`, /health hangs too",
    "slow": "decodes and prefills `factor` times slower",
    "error": "answers `status` instead of generating, with Retry-After if `retry_after` is set",
    "cut": "closes the connection after `after_tokens`; with `reset`, by RST",
    "wrong": "well-formed text that is not the model's",
    "garbage": "repeats `text` for ever; an empty `text` gives tokens without text",
    "unhealthy": "/health answers 503, requests are served",
    "slow_health": "/health takes `seconds`",
    "malformed": "one broken SSE event in place of token number `after_tokens`",
    "role_then_error": "the role chunk, then an error event; with `reset`, then a closed connection",
    "no_tokens": "200 with an empty answer that says stop",
    "error_event": "an error event after `after_tokens`, then [DONE], as vLLM ends a failed stream",
}
NEVER = 1 << 62
_STRIKES = frozenset({"die", "hang", "cut", "malformed", "error_event", "role_then_error", "no_tokens"})
_HITS_HEALTH = frozenset({"unhealthy", "slow_health"})


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. It hits a `share` (0 to 1) of the requests, at most `times` of them; None is all."""

    kind: str = "none"
    after_tokens: int | None = None
    factor: float = 10.0
    status: int = 500
    retry_after: float | None = None
    seconds: float = 10.0
    text: str = "!"
    reset: bool = False
    health: bool = False
    share: float = 1.0
    times: int | None = None

    @property
    def trigger_tokens(self) -> int:
        """How many tokens a sequence has generated when this fault strikes it."""
        return (self.after_tokens or 0) if self.kind in _STRIKES else NEVER

    @property
    def is_at_the_start(self) -> bool:
        """Whether it spares streams that have begun."""
        return self.kind in ("no_tokens", "role_then_error")

    @property
    def is_per_request(self) -> bool:
        return self.kind not in _HITS_HEALTH and self.kind not in ("none", "slow")


HEALTHY = Fault()


def parse_fault(body: object) -> Fault:
    """A fault from its JSON; raises ValueError that names what is wrong."""
    if not isinstance(body, dict):
        raise ValueError("a fault is a JSON object with a kind")
    unknown = set(body) - {field.name for field in fields(Fault)}
    if unknown:
        raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
    fault = Fault(**body)
    if fault.kind not in KINDS:
        raise ValueError(f"unknown kind {fault.kind!r}; one of {', '.join(KINDS)}")
    return fault


class FaultSwitch:
    """The fault in force, and the draw of which requests it hits."""

    def __init__(self, fault: Fault = HEALTHY, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self.set(fault)

    def set(self, fault: Fault) -> None:
        self.fault = fault
        self._left = NEVER if fault.times is None else fault.times

    def draw(self) -> Fault:
        """The fault that the next request has."""
        fault = self.fault
        if not fault.is_per_request or self._left <= 0:
            return HEALTHY
        if fault.share < 1.0 and self._rng.random() >= fault.share:
            return HEALTHY
        self._left -= 1
        return fault
