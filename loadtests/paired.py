"""What one way costs against another, from pairs that were measured one right after the other."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import comb
from statistics import median

LEFT_OUT = 40
"""One in so many of the pairs' distribution on either side of what is claimed: the rest is 95 %."""


@dataclass(frozen=True, slots=True)
class Change:
    """How much more it is, as a share, and the interval in which the true median lies with at least 95 % confidence."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:+.1%} ({self.low:+.1%} to {self.high:+.1%})"


def change_of(pairs: Iterable[tuple[float, float]]) -> Change:
    """Of pairs of what was measured and its base.

    The interval is between two of the pairs' own ratios, by the binomial distribution of how many lie below the median:
    no shape of the noise is assumed (https://en.wikipedia.org/wiki/Sign_test).
    """
    ratios = sorted(found / base - 1.0 for found, base in pairs)
    edge = _edge(len(ratios))
    return Change(median(ratios), ratios[edge], ratios[-1 - edge])


def _edge(count: int) -> int:
    """How many of so many sorted values may be left out on either side."""
    below, edge = 1, 0
    # In whole numbers: those of a thousand pairs are larger than any float.
    while below * LEFT_OUT <= 2**count and edge < count // 2:
        edge += 1
        below += comb(count, edge)
    return max(0, edge - 1)
