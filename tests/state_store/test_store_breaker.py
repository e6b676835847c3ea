"""The breaker's decisions, as tables of literals."""

import random

import pytest

from state_store.guarded import StoreBreaker


class Middle(random.Random):
    """No jitter: always the middle of the range."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def breaker() -> StoreBreaker:
    return StoreBreaker(backoff_s=1.0, max_backoff_s=4.0, rng=Middle())


def admitted(subject: StoreBreaker, now: float) -> int:
    ticket = subject.admit(now)
    assert ticket is not None
    return ticket


def test_one_failure_opens_it_until_the_back_off_is_over() -> None:
    subject = breaker()
    subject.fail(admitted(subject, 0.0), 0.5)
    assert subject.state == "open"
    assert [subject.admit(now) for now in (0.5, 1.0, 1.49)] == [None, None, None]
    assert subject.admit(1.5) is not None
    assert subject.state == "half-open"


def test_half_open_lets_one_through() -> None:
    subject = breaker()
    subject.fail(admitted(subject, 0.0), 0.0)
    assert [subject.admit(1.0) is not None for _ in range(5)] == [True, False, False, False, False]


def test_a_try_that_never_comes_back_does_not_shut_it_for_ever() -> None:
    subject = breaker()
    subject.fail(admitted(subject, 0.0), 0.0)
    admitted(subject, 1.0)
    assert subject.admit(1.9) is None
    assert subject.admit(2.0) is not None


@pytest.mark.parametrize(("failed_tries", "wait_s"), [(0, 1.0), (1, 2.0), (2, 4.0), (3, 4.0)])
def test_the_back_off_doubles_up_to_its_limit(failed_tries: int, wait_s: float) -> None:
    subject = breaker()
    now = 0.0
    subject.fail(admitted(subject, now), now)
    for _ in range(failed_tries):
        now += 4.0
        subject.fail(admitted(subject, now), now)
    assert subject.admit(now + wait_s - 0.01) is None
    assert subject.admit(now + wait_s) is not None


@pytest.mark.parametrize(("well_for_s", "wait_s"), [(0.5, 4.0), (12.0, 4.0), (12.5, 1.0)])
def test_success_closes_it_and_only_a_steady_one_forgets_the_back_off(
    well_for_s: float, wait_s: float
) -> None:
    subject = breaker()
    subject.fail(admitted(subject, 0.0), 0.0)
    subject.fail(admitted(subject, 1.0), 1.0)
    subject.succeed(admitted(subject, 3.0), 3.0)
    assert subject.state == "closed"
    failed_at = 3.0 + well_for_s
    subject.fail(admitted(subject, failed_at), failed_at)
    assert subject.admit(failed_at + wait_s - 0.01) is None
    assert subject.admit(failed_at + wait_s) is not None


def test_calls_from_before_it_changed_have_no_vote() -> None:
    subject = breaker()
    early = [admitted(subject, 0.0) for _ in range(3)]
    subject.fail(early[0], 0.1)
    subject.fail(early[1], 5.0)
    subject.succeed(early[2], 5.0)
    assert subject.state == "open"
    assert subject.admit(1.1) is not None
