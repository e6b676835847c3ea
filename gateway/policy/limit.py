"""How many requests a replica gets at once where nobody says: learnt from the time to the first token.

A limit maps samples to a number, and asks nobody. It never looks at total latency, which output length would move; and it
changes only on samples that began after its last change, as older ones tell of the limit before. After Netflix's
concurrency-limits: additive increase, multiplicative decrease (Chiu, Jain), and the gradient of a short against a long mean.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Protocol

INITIAL, LEAST, MOST = 32, 2, 1024
BACK_OFF = 0.9
LATE_SHARE = 0.25
"""Of the SLO: a replica that takes longer to begin lets requests wait inside, where priority counts for nothing."""
BASE_FACTOR = 2.0
"""Or, where a prompt alone takes that long, so many times the quickest that was seen."""
TOLERANCE = 1.5
LONG_EWMA, SHORT_EWMA, STEP = 0.01, 0.2, 0.2


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as the limit sees it. Times are monotonic seconds."""

    began_at: float
    now: float
    ttft_s: float
    """From sending it to its first token; what it took until then, if it was dropped."""
    in_flight: int
    """Requests on the replica when it began, itself included."""
    was_dropped: bool = False
    """The replica pushed back."""


class Limit(Protocol):
    """A number that follows samples."""

    def update(self, sample: Sample) -> int:
        """The limit after this sample."""
        ...


class AimdLimit:
    """One more per round while it is used and first tokens come soon; a tenth less when one comes late or is refused."""

    def __init__(self, ttft_slo_s: float, initial: int = INITIAL) -> None:
        self._late_s = LATE_SHARE * ttft_slo_s
        self._limit = float(initial)
        self._base_s = float("inf")
        self._changed_at = 0.0

    def update(self, sample: Sample) -> int:
        if not sample.was_dropped:
            self._base_s = min(self._base_s * 1.001, sample.ttft_s)
        is_late = sample.ttft_s > max(self._late_s, BASE_FACTOR * self._base_s)
        if sample.began_at >= self._changed_at:
            if sample.was_dropped or is_late:
                self._become(min(self._limit, sample.in_flight) * BACK_OFF, sample.now)
            elif 2 * sample.in_flight >= self._limit:
                self._become(self._limit + 1.0, sample.now)
        return int(self._limit)

    def _become(self, limit: float, now: float) -> None:
        self._limit = min(max(limit, LEAST), MOST)
        self._changed_at = now


class GradientLimit:
    """As much less as first tokens have become later than usual, and room for a queue of the limit's square root."""

    def __init__(self, ttft_slo_s: float, initial: int = INITIAL) -> None:
        self._late_s = LATE_SHARE * ttft_slo_s
        self._limit = float(initial)
        self._long_s = self._short_s = 0.0
        self._changed_at = 0.0

    def update(self, sample: Sample) -> int:
        if not sample.was_dropped:
            self._long_s = _towards(self._long_s, sample.ttft_s, LONG_EWMA)
            self._short_s = _towards(self._short_s, sample.ttft_s, SHORT_EWMA)
        if self._long_s > 2.0 * self._short_s:
            # What was usual belongs to an overload that is over.
            self._long_s *= 0.95
        is_used = 2 * sample.in_flight >= self._limit
        if sample.began_at >= self._changed_at and (is_used or sample.was_dropped):
            self._limit = min(max(self._wanted(sample), LEAST), MOST)
            self._changed_at = sample.now
        return int(self._limit)

    def _wanted(self, sample: Sample) -> float:
        if sample.was_dropped:
            return min(self._limit, sample.in_flight) * BACK_OFF
        usual_s = TOLERANCE * min(self._long_s, self._late_s)
        gradient = min(1.0, max(0.5, usual_s / max(self._short_s, 1e-6)))
        return _towards(self._limit, self._limit * gradient + sqrt(self._limit), STEP)


def _towards(mean: float, value: float, weight: float) -> float:
    return value if mean == 0.0 else mean + weight * (value - mean)


def limit_of(name: str, ttft_slo_s: float, initial: int = INITIAL) -> Limit | None:
    """The limit of that name in the configuration; None for `none`."""
    if name == "none":
        return None
    return AimdLimit(ttft_slo_s, initial) if name == "aimd" else GradientLimit(ttft_slo_s, initial)
