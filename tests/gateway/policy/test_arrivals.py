"""Rates of arrival, by what outranks whom."""

import pytest

from gateway.policy.arrivals import ArrivalRates


def steady(*ranks: int, seconds: int) -> ArrivalRates:
    """These arrive every second, evenly spread."""
    rates = ArrivalRates()
    for second in range(seconds):
        for number, rank in enumerate(ranks):
            rates.add(rank, 100.0 + second + number / len(ranks))
    return rates


def test_who_outranks_whom() -> None:
    critical, standard, sheddable = steady(0, 0, 1, 1, 1, 2, seconds=30).outranking_per_s(130.0)
    assert critical == 0.0
    assert standard == pytest.approx(2.0, rel=0.15)
    assert sheddable == pytest.approx(5.0, rel=0.15)


def test_the_first_second_counts_in_full() -> None:
    _, standard, _ = steady(*[0] * 10, seconds=1).outranking_per_s(101.0)
    assert standard == pytest.approx(10.0, rel=0.2)


def test_a_single_arrival_is_no_rate() -> None:
    assert steady(0, seconds=1).outranking_per_s(100.0)[1] < 4.0


def test_critical_ones_are_expected_though_none_came() -> None:
    _, standard, _ = steady(*[1] * 20, seconds=30).outranking_per_s(130.0)
    assert standard == pytest.approx(1.0, rel=0.1)


def test_what_has_ended_fades() -> None:
    assert steady(*[0] * 10, seconds=30).outranking_per_s(145.0)[1] < 0.2


def test_nothing_is_expected_for_ever() -> None:
    assert steady(*[1] * 5, seconds=700).outranking_per_s(800.0)[1] == 0.0
