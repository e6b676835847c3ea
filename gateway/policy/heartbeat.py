"""When a missing heartbeat means something: an adaptive timeout from the beats' own rhythm (after Chen et al., 2002)."""

from collections import deque
from math import sqrt
from typing import Literal

SUSPICIOUS_SIGMAS, DEAD_SIGMAS = 4.0, 12.0
FLOOR_SHARE = 0.5
"""Of the mean interval: so that a very regular heart is not suspected for a few milliseconds."""


class Heartbeats:
    """The last intervals between beats, and what silence means by them. Times are monotonic seconds."""

    def __init__(self, expected_s: float, memory: int = 32) -> None:
        self._expected_s = expected_s
        self._intervals: deque[float] = deque(maxlen=memory)
        self._last = 0.0

    def beat(self, now: float) -> None:
        if self._last:
            self._intervals.append(now - self._last)
        self._last = now

    def verdict(self, now: float) -> Literal["alive", "suspicious", "dead"]:
        """`suspicious` asks for a probe; `dead` is believed until the next beat."""
        silence_s = now - self._last
        if silence_s <= self.timeout_s(SUSPICIOUS_SIGMAS):
            return "alive"
        return "suspicious" if silence_s <= self.timeout_s(DEAD_SIGMAS) else "dead"

    def timeout_s(self, sigmas: float) -> float:
        """H + k·σ, with H the mean interval and σ at least a share of it."""
        if len(self._intervals) < 3:
            mean, deviation = self._expected_s, self._expected_s
        else:
            mean = sum(self._intervals) / len(self._intervals)
            deviation = sqrt(sum((i - mean) ** 2 for i in self._intervals) / len(self._intervals))
        return mean + sigmas * max(deviation, FLOOR_SHARE * mean)
