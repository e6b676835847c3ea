"""Pairs compared: the median, and how sure it is."""

from random import Random

import pytest

from loadtests.paired import _edge, change_of


@pytest.mark.parametrize(
    ("count", "edge"), [(3, 0), (5, 0), (6, 0), (9, 1), (20, 5), (40, 13), (100, 39), (2000, 955)]
)
def test_how_many_may_be_left_out_on_either_side(count: int, edge: int) -> None:
    """As the tables of the sign test have it."""
    assert _edge(count) == edge


def test_a_change_that_is_there_is_found_under_noise_ten_times_as_large() -> None:
    rng, pairs = Random(3), []
    for _ in range(400):
        machine = rng.uniform(0.5, 2.0)
        pairs.append((1.02 * machine * rng.uniform(0.9, 1.1), machine * rng.uniform(0.9, 1.1)))
    change = change_of(pairs)
    assert 0.0 < change.low < 0.02 < change.high < 0.04


def test_none_is_not_found() -> None:
    rng, misses = Random(4), 0
    for _ in range(200):
        change = change_of([(rng.uniform(0.9, 1.1), rng.uniform(0.9, 1.1)) for _ in range(40)])
        misses += not change.low <= 0.0 <= change.high
    assert misses <= 20  # a twentieth of them may
