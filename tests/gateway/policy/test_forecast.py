"""When slots come free, and how many are kept."""

import pytest

from gateway.policy.forecast import Forecast

NOW = 100.0
BURST = Forecast([99.9, 99.9, 99.95, 99.95], 1.0)
"""Four slots, all taken just now."""
EVEN = Forecast([99.2, 99.4, 99.6, 99.8], 1.0)


@pytest.mark.parametrize(
    ("forecast", "nth", "wait_s"),
    [
        (Forecast(), 1, 0.0),
        (EVEN, 1, 0.2),
        (EVEN, 4, 0.8),
        # a second round of answers
        (EVEN, 5, 1.2),
        (EVEN, 9, 2.2),
        (BURST, 1, 0.9),
        (BURST, 4, 0.95),
        # one that takes longer than the mean ends at any moment
        (Forecast([98.0, 99.5], 1.0), 1, 0.0),
        (Forecast([98.0, 99.5], 1.0), 2, 0.5),
        # answers that differ in length end at an even rate at best
        (Forecast([98.0, 98.0, 98.0, 98.0], 1.0, 1.0), 2, 0.5),
        (Forecast([98.0, 98.0, 98.0, 98.0], 1.0, 0.5), 2, 0.25),
        # nobody has seen an answer whole: one second, or as long again as the oldest has taken
        (Forecast([99.9, 99.95], 0.0), 1, 0.9),
        (Forecast([97.0, 99.0], 0.0), 1, 3.0),
    ],
)
def test_wait(forecast: Forecast, nth: int, wait_s: float) -> None:
    assert forecast.wait_s(nth, NOW) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("forecast", "nth", "beginning", "wait_s"),
    [
        # the last of thirty in a burst on eight slots, while seven of those who got one have yet to begin
        (Forecast([NOW]), 22, 7, 3.0),
        (Forecast([NOW]), 22, 0, 22.0),
        # nobody has begun at all
        (Forecast([]), 9, 8, 2.0),
        (EVEN, 4, 4, 0.8),
        (EVEN, 5, 4, 1.0),
    ],
)
def test_slots_that_have_just_been_given_away_come_free_too(
    forecast: Forecast, nth: int, beginning: int, wait_s: float
) -> None:
    assert forecast.wait_s(nth, NOW, beginning) == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("forecast", "outranking_per_s", "waiting", "kept"),
    [
        (BURST, 0.0, 0, 0),
        # 0.9 s without a release, of which they can wait 0.4: two are due, and one more by chance
        (BURST, 4.0, 0, 3),
        (BURST, 1.0, 0, 1),
        # those who wait already need one each, too
        (BURST, 4.0, 2, 5),
        # a slot comes free before any of them has waited too long
        (EVEN, 4.0, 0, 0),
        # nothing runs: what starts now is the first to end
        (Forecast([], 1.0), 5.0, 0, 5),
        (Forecast([], 0.3), 5.0, 0, 0),
        # nobody knows how long answers take: a second
        (Forecast([], 0.0), 5.0, 0, 5),
    ],
)
def test_kept(forecast: Forecast, outranking_per_s: float, waiting: int, kept: int) -> None:
    assert forecast.kept(outranking_per_s, waiting, 0.4, NOW) == kept
    assert forecast.kept_at_most(outranking_per_s, waiting, 0.4) >= kept - 0.5
