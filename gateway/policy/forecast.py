"""When a tier's slots come free, and how many of them must stay free for who outranks a request."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, sqrt

PRIOR_S = 1.0
"""How long an answer takes before one has been seen whole."""
LOOK_AHEAD = 32
"""Releases that are looked at: by then, the mean is as good as each one's own time."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Releases to come, from when the requests in flight began and how long answers take.

    Each request in flight is expected to take the mean; as far as answers differ in length, slots are expected to come
    free at an even rate instead, whichever is later. `started_at` (monotonic seconds) is in order, oldest first.
    """

    started_at: Sequence[float] = ()
    service_s: float = 0.0
    """Mean time that an answer holds its slot; 0 before one was seen."""
    spread: float = 0.0
    """Mean absolute deviation of that time, as a share of it, 0 to 1."""

    def wait_s(self, nth: int, now: float, beginning: int = 0) -> float:
        """Seconds until the `nth` slot comes free, 1 being the next. `beginning` requests have just got theirs."""
        started = len(self.started_at)
        count = started + beginning
        if not count:
            return 0.0
        oldest_s = now - self.started_at[0] if started else 0.0
        service_s = self.service_s or max(PRIOR_S, 2.0 * oldest_s)
        rounds, place = divmod(nth - 1, count)
        own_s = (self.started_at[place] - now if place < started else 0.0) + service_s * (1 + rounds)
        return max(0.0, own_s, self.spread * nth * service_s / count)

    def next_s(self, now: float) -> float:
        """Until the next slot comes free; when nothing runs, until what starts now ends."""
        return self.wait_s(1, now) if self.started_at else self.service_s or PRIOR_S

    def kept_at_most(self, outranking_per_s: float, waiting: int, patience_s: float) -> float:
        """An upper bound of `kept` that costs nothing."""
        due = max(0.0, (self.service_s or PRIOR_S) - patience_s) * outranking_per_s
        return due + sqrt(due) + waiting if due else 0.0

    def kept(self, outranking_per_s: float, waiting: int, patience_s: float, now: float) -> int:
        """Slots to keep for requests of a higher rank, which may wait `patience_s` and no longer.

        Before each release to come, those who will have lost their patience by then must have found a slot: one that is
        free now, or one of an earlier release. One standard deviation of chance (Poisson) is added.
        """
        service_s = self.service_s or PRIOR_S
        count = min(len(self.started_at), LOOK_AHEAD)
        most = 0.0
        for released in range(count + 1):
            horizon_s = self.started_at[released] - now + service_s if released < count else service_s
            due = max(0.0, horizon_s - patience_s) * outranking_per_s
            most = max(most, due + sqrt(due) + (waiting if due else 0) - released)
        return floor(most + 0.5)
