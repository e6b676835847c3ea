"""What a soak calls a leak, and a soak of seconds."""

import math
import random

import pytest

from loadtests.client import Question, Record
from loadtests.leaks import growth
from loadtests.soak import Tally, soak

RNG = random.Random(1)


def samples(amount: object, count: int = 300) -> list[tuple[float, float]]:
    assert callable(amount)
    return [(2.0 * n, float(amount(2.0 * n))) for n in range(count)]


@pytest.mark.parametrize(
    ("amount", "is_leak"),
    [
        (lambda s: 100.0, False),
        (lambda s: 100.0 + RNG.uniform(-20, 20), False),
        (lambda s: 100.0 + 60.0 * (1 - math.exp(-s / 30)), False),
        (lambda s: 100.0 + (500.0 if 400 < s < 420 else 0.0), False),
        (lambda s: 100.0 + s / 10, True),
        (lambda s: 100.0 + s / 10 + RNG.uniform(-20, 20), True),
        (lambda s: 100.0 + 50.0 * (s // 150), True),
    ],
)
def test_steady_growth_is_a_leak_and_peaks_and_warm_caches_are_not(amount: object, is_leak: bool) -> None:
    assert growth(samples(amount)).is_leak(15.0, 0.1) is is_leak


def test_the_slope_is_per_hour() -> None:
    assert growth(samples(lambda s: 100.0 + s / 10)).per_hour == pytest.approx(360.0)


def test_a_tally_counts_by_judgement() -> None:
    tally = Tally(0.0)
    question = Question(({"role": "user", "content": "x"},), 3)
    for failure in ("cut", "left"):
        tally.take(Record(0.0, question, failure=failure, status=200))
    refused = Record(0.0, question, status=429, headers={"x-shed-reason": "deadline"})
    tally.take(refused)
    assert tally.judgements == {"failed cut": 1, "left": 1, "shed deadline": 1}
    assert tally.whole_share == 0.0
    assert [one["why"] for one in tally.complaints] == ["cut"]


@pytest.mark.slow
async def test_a_short_soak_ends_at_rest_and_tells_what_it_saw() -> None:
    report, seen = await soak(0.2, 10.0, seed=3)
    assert report.judgements["whole"] > 50
    assert sum(report.faults.values()) >= 1
    assert report.at_rest["in flight at the gateway"] == 0
    assert report.at_rest["running at the engines"] == 0
    assert all(sample.rss_bytes > 1e7 and sample.fds > 5 and sample.tasks > 1 for sample in seen)
    assert "faults:" in report.text()


@pytest.mark.slow
async def test_a_soak_with_a_small_budget_fills_it_and_stays_within() -> None:
    report, seen = await soak(0.2, 10.0, seed=3, has_small_budget=True)
    assert report.judgements["whole"] > 50
    assert max(sample.store_bytes for sample in seen) > 0
    assert max(sample.store_bytes for sample in seen) < 6e6
