"""Outcomes over a sliding window."""

import pytest

from gateway.policy.window import OutcomeWindow

OK, FAILED, SLOW = (False, False), (True, False), (False, True)


def window(*calls: tuple[float, tuple[bool, bool]]) -> OutcomeWindow:
    found = OutcomeWindow(10.0)
    for now, (failed, slow) in calls:
        found.add(now, failed, slow)
    return found


def is_ill(found: OutcomeWindow, now: float, min_count: int = 4) -> bool:
    return found.is_ill(now, min_count, failure_share=0.5, slow_share=0.75)


TABLE = [
    ([FAILED] * 3, False),  # too few
    ([FAILED] * 4, True),
    ([FAILED, OK] * 2, True),  # exactly the share
    ([FAILED, OK, OK, OK], False),
    ([SLOW, SLOW, SLOW, OK], True),
    ([SLOW, SLOW, OK, OK], False),
    ([SLOW, SLOW, FAILED, OK], False),  # neither share alone
    ([OK] * 4, False),
]


@pytest.mark.parametrize(("calls", "expected"), TABLE)
def test_shares(calls: list[tuple[bool, bool]], expected: bool) -> None:
    assert is_ill(window(*((1.0, c) for c in calls)), 1.0) is expected


def test_what_is_old_is_forgotten() -> None:
    found = window(*((n, FAILED) for n in (0.0, 1.0, 2.0, 3.0)))
    assert is_ill(found, 10.0)
    assert not is_ill(found, 10.1)


def test_old_successes_do_not_hide_new_failures() -> None:
    found = window(*((0.0, OK) for _ in range(1000)), *((11.0, FAILED) for _ in range(4)))
    assert is_ill(found, 11.0)


def test_cleared() -> None:
    found = window(*((0.0, FAILED) for _ in range(4)))
    found.clear()
    assert not is_ill(found, 0.0, min_count=1)
