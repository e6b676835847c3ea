"""Shares of the last minute."""

import pytest

from gateway.shares import TierShares


def shares(*answers: tuple[str, float]) -> TierShares:
    found = TierShares()
    for tier, now in answers:
        found.add(tier, now)
    return found


@pytest.mark.parametrize(
    ("answers", "now", "expected"),
    [
        ((), 100.0, 0.0),
        ((("small", 100.0),), 100.0, 0.0),
        ((("best", 100.0),), 100.9, 1.0),
        ((("best", 100.0), ("small", 100.1), ("small", 101.0), ("best", 102.0)), 102.0, 0.5),
        ((("best", 100.0), *(("small", 101.0),) * 3), 101.0, 0.25),
        ((("best", 100.0), ("small", 130.0)), 159.9, 0.5),
        ((("best", 100.0), ("small", 130.0)), 160.0, 0.0),  # a minute later
        ((("small", 100.0), ("best", 1000.0)), 1000.0, 1.0),
        ((("best", 100.0),), 1000.0, 0.0),
    ],
)
def test_share_of_best(answers: tuple[tuple[str, float], ...], now: float, expected: float) -> None:
    assert shares(*answers).of("best", now) == expected


def test_a_minute_of_steady_traffic() -> None:
    found = shares(*(("best" if n % 4 else "small", n / 10) for n in range(3000)))
    assert found.of("best", 299.9) == pytest.approx(0.75)
