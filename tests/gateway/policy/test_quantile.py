"""The decaying histogram, against exact quantiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.quantile import DurationQuantiles

DURATIONS = st.lists(st.floats(0.0006, 800.0), min_size=1, max_size=300)


def filled(samples: list[float], half_life: int = 2000) -> DurationQuantiles:
    quantiles = DurationQuantiles(half_life)
    for sample in samples:
        quantiles.add(sample)
    return quantiles


@given(DURATIONS, st.sampled_from([0.1, 0.5, 0.9, 0.99, 0.999]))
def test_within_a_fifth_above_the_exact_quantile(samples: list[float], q: float) -> None:
    found = filled(samples).quantile(q)
    assert found is not None
    low = float(np.percentile(samples, 100 * q, method="lower"))
    high = float(np.percentile(samples, 100 * q, method="higher"))
    # The definitions of a quantile between two samples differ: any from one sample to the next will do.
    assert 0.999 * low <= found <= 1.201 * max(high, _next_above(samples, high))


def _next_above(samples: list[float], value: float) -> float:
    return min((s for s in samples if s > value), default=value)


def test_nothing_known() -> None:
    assert DurationQuantiles().quantile(0.5) is None


@pytest.mark.parametrize(
    ("sample", "edge"), [(0.0, 0.0005), (-1.0, 0.0005), (0.0005, 0.0005), (0.00055, 0.0006)]
)
def test_the_lowest_buckets(sample: float, edge: float) -> None:
    assert filled([sample]).quantile(0.99) == pytest.approx(edge)


def test_what_is_longer_than_the_last_bucket_counts_in_it() -> None:
    found = filled([1e9]).quantile(0.5)
    assert found is not None
    assert 890 < found < 910


def test_recent_samples_weigh_more() -> None:
    quantiles = filled([1.0] * 100, half_life=100)
    for _ in range(60):
        quantiles.add(0.01)
    # Fifty of the old hundred are left in weight, against sixty.
    found = quantiles.quantile(0.5)
    assert found is not None
    assert found < 0.013


def test_the_total_halves_with_the_weights() -> None:
    assert filled([1.0] * 100, half_life=100).total == 50.0
