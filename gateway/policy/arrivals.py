"""How often requests of each rank come: counts that fade, so that rates follow the load within seconds."""

from math import exp

FADE_S = 3.0
LEAST_S = 0.3
"""What was seen in less time says little about a rate."""
UNSEEN_SHARE = 0.05
"""Critical requests may come though none came lately: this share of all is expected of them at least."""
EXPECTED_FOR_S = 600.0
"""That long after the last one: where nobody sends any, nothing is kept for them."""


class ArrivalRates:
    """Arrivals by rank (critical, standard, sheddable). Times are monotonic seconds."""

    __slots__ = ("_as_of", "_counts", "_critical_at", "_weight_s")

    def __init__(self) -> None:
        self._counts = [0.0, 0.0, 0.0]
        self._weight_s = 0.0
        self._as_of = 0.0
        self._critical_at = 0.0

    def add(self, rank: int, now: float) -> None:
        self._fade(now)
        self._counts[rank] += 1.0
        if rank == 0 or not self._critical_at:
            self._critical_at = now

    def _fade(self, now: float) -> None:
        """The counts and the time that they stand for fade alike."""
        if now <= self._as_of:
            return
        passed_s = now - self._as_of if self._as_of else 0.0
        keep = exp(-passed_s / FADE_S)
        self._counts = [count * keep for count in self._counts]
        self._weight_s = self._weight_s * keep + FADE_S * (1.0 - keep)
        self._as_of = now

    def per_s(self, now: float) -> float:
        """All requests a second."""
        self._fade(now)
        return sum(self._counts) / max(self._weight_s, LEAST_S)

    def outranking_per_s(self, now: float) -> tuple[float, float, float]:
        """Requests a second that go before a critical, a standard, and a sheddable one."""
        self._fade(now)
        over_s = max(self._weight_s, LEAST_S)
        critical, standard, sheddable = (count / over_s for count in self._counts)
        if now - self._critical_at < EXPECTED_FOR_S:
            critical = max(critical, UNSEEN_SHARE * (critical + standard + sheddable))
        return 0.0, critical, critical + standard
