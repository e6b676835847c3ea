"""Whether what a process holds grows: judged on samples of a whole run, so that one peak is no leak."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

WARM_SHARE = 0.3
"""Of the run: caches fill, pools grow to their size."""
ENDS_SHARE = 0.2
"""Of what is left: how much of each end is compared."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Between the ends of the warm part, as medians, and as Theil and Sen's slope."""

    begins: float
    ends: float
    per_hour: float

    def is_leak(self, most_more: float, most_share: float) -> bool:
        """More than both an amount and a share of what it began with."""
        return self.ends - self.begins > max(most_more, most_share * self.begins)


def growth(samples: Sequence[tuple[float, float]]) -> Growth:
    """Of samples as (seconds, amount)."""
    warm = samples[int(len(samples) * WARM_SHARE) :]
    width = max(int(len(warm) * ENDS_SHARE), 1)
    amounts = [amount for _, amount in warm]
    return Growth(
        statistics.median(amounts[:width]), statistics.median(amounts[-width:]), _slope(warm) * 3600
    )


def _slope(samples: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between pairs that are far apart: neither peaks nor steps back move it much."""
    half = len(samples) // 2
    pairs = zip(samples, samples[half:], strict=False)
    slopes = [(later[1] - first[1]) / (later[0] - first[0]) for first, later in pairs if later[0] > first[0]]
    return statistics.median(slopes) if slopes else 0.0
