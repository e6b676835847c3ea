"""How the benches of KV blocks judge what they measured, on numbers that are written down."""

from random import Random

import pytest

from deploy.bench_kv_cost import interval
from deploy.bench_kv_transport import Row, claims


@pytest.mark.parametrize(
    ("samples", "low", "high"),
    [
        ([0.03] * 9, 0.03, 0.03),
        ([0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06], 0.01, 0.05),
        # One round in which the machine was busy moves nothing.
        ([0.02] * 8 + [0.9], 0.02, 0.02),
    ],
)
def test_between_which_the_true_median_lies(samples: list[float], low: float, high: float) -> None:
    assert interval(samples, Random(1)) == (low, high)


def test_more_rounds_tell_more() -> None:
    rng = Random(2)
    noisy = [0.03 + rng.uniform(-0.2, 0.2) for _ in range(200)]
    few, many = interval(noisy[:10], Random(1)), interval(noisy, Random(1))
    assert many[1] - many[0] < few[1] - few[0]
    assert many[0] < 0.05


def rows(load: float, get: float) -> list[Row]:
    rates = {"our sockets, load": load, "redis-py, load, one MGET": 0.5, "redis-py, load, a GET each": get}
    rates |= {"our sockets, save": 2.0, "redis-py, save, a SET each": 0.5}
    return [Row(name, (rate * 1e9, rate * 0.9e9), 0.2, 0.3) for name, rate in rates.items()]


def test_what_is_claimed_of_the_transport() -> None:
    assert [holds for holds, _ in claims(rows(load=1.8, get=0.5))] == [True, True, True, True]
    assert [holds for holds, _ in claims(rows(load=1.4, get=0.5))] == [False, False, True, False]
    assert [holds for holds, _ in claims(rows(load=2.4, get=1.6))] == [True, False, True, True]
    assert "0.30 in Redis" in rows(1.0, 1.0)[0].text
