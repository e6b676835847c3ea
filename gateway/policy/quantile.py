"""A decaying histogram over logarithmic buckets: quantiles of durations in constant memory, recent ones weigh more."""

from itertools import pairwise
from math import log

_FLOOR_S = 0.0005
_GROWTH = 1.2
_BUCKETS = 80
_LOG_GROWTH = log(_GROWTH)


class DurationQuantiles:
    """Quantiles of durations between 0.5 ms and 15 min, each within 20 %. Half of the weight is forgotten every
    `half_life` samples; the plain counts since the start stay, for those who count for themselves."""

    __slots__ = ("_counts", "_forgotten", "_half_life", "_since_decay", "sum_s", "total")

    def __init__(self, half_life: int = 2000) -> None:
        self._counts = [0] * _BUCKETS
        self._forgotten = [0.0] * _BUCKETS
        self._half_life = half_life
        self._since_decay = 0
        self.total = 0.0
        """What the samples weigh now."""
        self.sum_s = 0.0
        """Of all samples since the start."""

    def add(self, duration_s: float) -> None:
        bucket = int(log(duration_s / _FLOOR_S) / _LOG_GROWTH) + 1 if duration_s > _FLOOR_S else 0
        self._counts[min(bucket, _BUCKETS - 1)] += 1
        self.sum_s += duration_s
        self.total += 1.0
        self._since_decay += 1
        if self._since_decay >= self._half_life:
            self._decay()

    def _decay(self) -> None:
        pairs = zip(self._counts, self._forgotten, strict=True)
        self._forgotten = [(count + forgotten) / 2 for count, forgotten in pairs]
        self.total /= 2
        self._since_decay = 0

    def quantile(self, q: float) -> float | None:
        """The upper edge of the bucket that holds the q-quantile, in seconds; None without samples."""
        if self.total <= 0:
            return None
        rest = self.total * (1.0 - q)
        for bucket in range(_BUCKETS - 1, -1, -1):
            rest -= self._counts[bucket] - self._forgotten[bucket]
            if rest < 0:
                return _FLOOR_S * _GROWTH**bucket
        return _FLOOR_S

    def counts(self) -> list[int]:
        """Samples since the start, by `EDGES_S` and beyond the last of them."""
        ends = [*range(1, _BUCKETS, _COARSE), _BUCKETS]
        return [sum(self._counts[begin:end]) for begin, end in pairwise([0, *ends])]


_COARSE = 4
EDGES_S = tuple(_FLOOR_S * _GROWTH**bucket for bucket in range(0, _BUCKETS, _COARSE))
"""Edges for those who keep a histogram of each replica: every fourth, so that there are not too many."""
