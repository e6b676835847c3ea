"""The retry budget: numbers in, numbers out."""

import pytest

from gateway.policy.retry_budget import RetryBudget


def spent(budget: RetryBudget, now: float, tries: int) -> int:
    return sum(budget.spend(now) for _ in range(tries))


def test_a_fresh_budget_holds_its_burst() -> None:
    assert spent(RetryBudget(0.1, 0.0, burst=5.0), 1.0, 100) == 5


@pytest.mark.parametrize(("requests", "tries"), [(9, 0), (10, 1), (25, 2), (1000, 5)])
def test_ten_requests_earn_one_attempt_up_to_the_burst(requests: int, tries: int) -> None:
    budget = RetryBudget(0.1 + 1e-9, 0.0, burst=5.0)
    spent(budget, 1.0, 5)
    for _ in range(requests):
        budget.earn(1.0)
    assert spent(budget, 1.0, 100) == tries


@pytest.mark.parametrize(("seconds", "tries"), [(0.3, 0), (0.34, 1), (1.01, 3), (60.0, 5)])
def test_quiet_times_earn_the_floor(seconds: float, tries: int) -> None:
    budget = RetryBudget(0.1, 3.0, burst=5.0)
    spent(budget, 1.0, 5)
    assert spent(budget, 1.0 + seconds, 100) == tries


def test_looking_changes_nothing() -> None:
    budget = RetryBudget(0.1, 3.0, burst=5.0)
    spent(budget, 1.0, 5)
    assert [budget.balance(1.5), budget.balance(1.5)] == [1.5, 1.5]
    assert spent(budget, 1.5, 9) == 1


def test_a_clock_that_stands_earns_nothing() -> None:
    budget = RetryBudget(0.1, 3.0, burst=2.0)
    assert spent(budget, 1.0, 50) == 2


def test_when_all_fails_attempts_stay_a_tenth_of_the_traffic() -> None:
    # 100 requests a second for a minute, each of which would retry five times if it were let.
    budget = RetryBudget(0.1, 3.0, burst=32.0)
    retries = 0
    for n in range(6000):
        budget.earn(n / 100)
        retries += spent(budget, n / 100, 5)
    assert 600 + 180 <= retries <= 600 + 180 + 32
