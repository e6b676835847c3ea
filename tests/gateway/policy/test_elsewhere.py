"""What others run on a replica, from readings as literals, and gateways that share one in a small simulation."""

import pytest

from gateway.policy.elsewhere import Elsewhere, heard

NOW = 100.0


def after(*readings: tuple[int, int], slots: int = 8) -> Elsewhere:
    """Readings of (sequences told, of those from here), half a second apart."""
    elsewhere = Elsewhere()
    for number, (told, mine) in enumerate(readings):
        elsewhere = heard(elsewhere, told, mine, slots, NOW + number / 2)
    return elsewhere


@pytest.mark.parametrize(
    ("readings", "sequences"),
    [
        ([(0, 0)], 0),
        ([(5, 5), (5, 5)], 0),
        # one reading alone may have met requests that came or went
        ([(5, 2)], 0),
        ([(5, 2), (5, 2)], 3),
        ([(5, 2), (3, 2)], 1),
        ([(5, 2), (5, 2), (2, 2)], 0),
        # not all of ours are there yet
        ([(2, 5), (2, 5)], 0),
        ([(50, 4), (60, 4)], 46),
    ],
)
def test_what_counts(readings: list[tuple[int, int]], sequences: int) -> None:
    assert after(*readings).sequences == sequences


def test_who_has_most_of_a_full_replica_leaves_a_place() -> None:
    assert after((8, 7), (8, 7)).left == 1
    assert after((8, 4), (8, 4)).left == 0, "not who has half"
    assert after((6, 5), (6, 5)).left == 0, "not where there is room"
    assert after((8, 8), (8, 8)).left == 0, "not where nobody else is"


def test_a_place_that_nobody_takes_is_taken_back_for_a_while() -> None:
    left = after((8, 7), (8, 7))
    back = heard(left, 7, 6, 8, NOW + 1.0)
    assert (back.left, back.places) == (0, 1)
    assert heard(back, 8, 7, 8, NOW + 2.0).left == 0
    assert heard(back, 8, 7, 8, NOW + 12.0).left == 1


@pytest.mark.parametrize("start", [(8, 0), (0, 8), (8, 0, 0)])
def test_gateways_that_all_want_more_come_to_share_a_replica(start: tuple[int, ...]) -> None:
    """Each has always someone waiting. An eighth of the requests ends each eighth of a second; they read twice a second."""
    running, known = list(start), [Elsewhere() for _ in start]
    most = 0
    for step in range(400):
        now = NOW + step / 8
        for me in range(len(start)):
            if (step + me) % 4 == 0:
                known[me] = heard(known[me], sum(running), running[me], 8, now)
            if running[me] and (step + me) % max(1, 8 // running[me]) == 0:
                running[me] -= 1
            running[me] = max(running[me], min(8, max(1, 8 - known[me].places)))
        most = max(most, sum(running)) if step > 100 else most
    assert most <= 8 + len(start)
    assert min(running) >= 2
