"""A decaying histogram over logarithmic buckets: quantiles of durations in constant memory, recent ones weigh more."""

from math import log

_FLOOR_S = 0.0005
_GROWTH = 1.2
_BUCKETS = 80
_LOG_GROWTH = log(_GROWTH)


class DurationQuantiles:
    """Quantiles of durations between 0.5 ms and 15 min, each within 20 %. Half of the weight is forgotten every
    `half_life` samples."""

    __slots__ = ("_counts", "_half_life", "_since_decay", "total")

    def __init__(self, half_life: int = 2000) -> None:
        self._counts = [0.0] * _BUCKETS
        self._half_life = half_life
        self._since_decay = 0
        self.total = 0.0

    def add(self, duration_s: float) -> None:
        bucket = int(log(duration_s / _FLOOR_S) / _LOG_GROWTH) + 1 if duration_s > _FLOOR_S else 0
        self._counts[min(bucket, _BUCKETS - 1)] += 1.0
        self.total += 1.0
        self._since_decay += 1
        if self._since_decay >= self._half_life:
            self._decay()

    def _decay(self) -> None:
        self._counts = [c / 2 for c in self._counts]
        self.total /= 2
        self._since_decay = 0

    def quantile(self, q: float) -> float | None:
        """The upper edge of the bucket that holds the q-quantile, in seconds; None without samples."""
        if self.total <= 0:
            return None
        rest = self.total * (1.0 - q)
        for bucket in range(_BUCKETS - 1, -1, -1):
            rest -= self._counts[bucket]
            if rest < 0:
                return _FLOOR_S * _GROWTH**bucket
        return _FLOOR_S
