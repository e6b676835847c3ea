"""Shares of the last minute, and what became of requests by the minute."""

from collections import Counter

import pytest

from gateway.shares import TierShares, of_kind


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


def test_an_hour_by_the_minute() -> None:
    found = TierShares()
    for tier, now in (("best", 10.0), ("small", 59.9), ("small", 60.0)):
        found.add(tier, now)
    found.shed("queue_full", 61.0)
    for now in (3599.0, 3601.0):
        found.add("best", now)
    hour = found.hour(3601.0)
    assert len(hour) == 60
    assert hour[0] == {("tier", "small"): 1, ("shed", "queue_full"): 1}  # the first minute has gone
    assert hour[-2] == {("tier", "best"): 1}
    assert hour[-1] == {("tier", "best"): 1}
    assert sum(c.total() for c in hour) == 4


def test_quiet_hours_are_empty() -> None:
    found = TierShares()
    found.add("best", 10.0)
    assert found.hour(100_000.0) == [Counter()] * 60
    assert found.last(60, 100_000.0) == {}


def test_reasons_and_sheds_of_the_last_seconds() -> None:
    found = TierShares()
    for now in (100.0, 105.0, 109.0):
        found.degraded("queue_full", now)
    found.shed("deadline", 109.5)
    found.stream("resumed", 109.5)
    last = found.last(5, 110.0)
    assert of_kind(last, "reason") == {"queue_full": 1}
    assert of_kind(last, "shed") == {"deadline": 1}
    assert of_kind(last, "stream") == {"resumed": 1}
    assert found.totals["reason", "queue_full"] == 3
    assert found.of("best", 110.0) == 0.0  # refusals and reasons are no answers


def test_it_keeps_no_more_than_an_hour() -> None:
    found = TierShares()
    for now in range(0, 20_000, 7):
        found.add("best", float(now))
    assert sum(c.total() for c in found.hour(20_000.0)) == pytest.approx(3600 / 7, rel=0.05)
