"""How long to wait for a sign of life."""

import pytest

from gateway.policy.patience import MIN_SAMPLES, first_token_patience_s, gap_patience_s
from gateway.policy.quantile import DurationQuantiles


def of(sample_s: float, count: int = 100) -> DurationQuantiles:
    quantiles = DurationQuantiles()
    for _ in range(count):
        quantiles.add(sample_s)
    return quantiles


GAPS = [
    # (own gap, samples, ITL SLO, prefill) → patience
    (0.2, 100, 1.0, 0.0, 0.6),
    (0.02, 100, 1.0, 0.0, 0.3),  # the floor
    (0.02, 100, 1.0, 2.0, 2.3),  # it also reads prompts
    (0.02, MIN_SAMPLES - 1, 0.2, 0.0, 0.6),  # too few samples: the SLO stands in
    (0.02, 0, 0.05, 0.0, 0.3),
]


@pytest.mark.parametrize(("gap_s", "count", "slo_s", "prefill_s", "expected"), GAPS)
def test_gap(gap_s: float, count: int, slo_s: float, prefill_s: float, expected: float) -> None:
    # The quantile is the upper edge of a bucket, up to a fifth above.
    found = gap_patience_s(of(gap_s, count), slo_s, prefill_s)
    assert 0.999 * expected <= found <= 1.21 * expected


FIRST = [
    (0.1, 100, 1.0, 0.4),
    (0.01, 100, 1.0, 0.3),  # the floor
    (0.5, 100, 1.0, 1.0),  # never longer than the SLO
    (0.01, MIN_SAMPLES - 1, 1.0, 1.0),  # nothing known
    (0.01, 100, 0.2, 0.2),  # an SLO below the floor holds
]


@pytest.mark.parametrize(("ttft_s", "count", "slo_s", "expected"), FIRST)
def test_first_token(ttft_s: float, count: int, slo_s: float, expected: float) -> None:
    found = first_token_patience_s(of(ttft_s, count), slo_s)
    assert 0.999 * expected <= found <= min(1.21 * expected, max(slo_s, expected))


def test_one_slow_token_in_a_thousand_sets_the_patience() -> None:
    gaps = DurationQuantiles()
    for n in range(1500):
        gaps.add(0.02 if n % 500 else 0.4)
    assert gap_patience_s(gaps, 1.0, 0.0) >= 1.2
