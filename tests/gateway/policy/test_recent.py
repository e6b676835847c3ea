"""What is said of the last seconds, and when nothing is."""

import pytest

from gateway.policy.recent import LEAST, WINDOW_S, Recent


@pytest.mark.parametrize(
    ("count", "p99_s"),
    [(LEAST - 1, None), (LEAST, 0.19), (100, 0.99)],
)
def test_p99_needs_samples(count: int, p99_s: float | None) -> None:
    recent = Recent()
    for n in range(count):
        recent.first_token((n + 1) / 100, 100.0)
        recent.waited((n + 1) / 50, 100.0)
    found = recent.ttft_p99_s(101.0)
    assert found == (None if p99_s is None else pytest.approx(p99_s))
    assert recent.wait_p99_s(101.0) == (None if p99_s is None else pytest.approx(2 * p99_s))


def test_failures_are_a_share() -> None:
    recent = Recent()
    assert recent.failure_share(100.0) is None
    for n in range(40):
        recent.ended("r", n % 4 == 0, 100.0)
    assert recent.failure_share(100.0) == 0.25


def test_what_is_old_says_nothing() -> None:
    recent = Recent()
    for _ in range(50):
        recent.first_token(9.0, 100.0)
        recent.ended("r", True, 100.0)
    now = 100.0 + WINDOW_S
    assert (recent.ttft_p99_s(now), recent.failure_share(now)) == (None, None)


def test_failures_of_a_replica_that_is_out_are_no_news() -> None:
    recent = Recent()
    for n in range(60):
        recent.ended("ill" if n % 2 else "well", bool(n % 2), 100.0)
    assert recent.failure_share(100.0) == 0.5
    recent.forget(["ill"])
    assert recent.failure_share(100.0) == 0.0
