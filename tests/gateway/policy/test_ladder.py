"""Signals to pressure, pressure to a share, a share to who goes down."""

import pytest

from gateway.policy.ladder import LEAST_SHARE, Rung, Signals, admitted, pressure, stepped

QUIET = (0.0, "")
PRESSED = (1.0, "ttft")


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        (Signals(), (0.0, "")),
        (Signals(ttft=0.9, errors=0.2, queue=0.8), (0.0, "")),
        (Signals(ttft=1.0), (0.0, "")),
        (Signals(ttft=1.25), (0.5, "ttft")),
        (Signals(ttft=1.2, errors=1.4), (0.8, "errors")),
        (Signals(lost=4.0), (1.0, "lost")),
        (Signals(kv=1.5), (1.0, "kv")),
        (Signals(dependencies=1.1, queue=1.05), (0.2, "dependencies")),
    ],
)
def test_pressure(signals: Signals, expected: tuple[float, str]) -> None:
    press, reason = pressure(signals)
    assert (press, reason) == (pytest.approx(expected[0]), expected[1])


def play(rung: Rung, *phases: tuple[float, tuple[float, str]], start: float = 100.0) -> list[float]:
    """The share at the end of each phase, given as seconds and what presses, stepped twice a second."""
    shares: list[float] = []
    now = start
    for seconds, (press, reason) in phases:
        for _ in range(int(seconds * 2)):
            now += 0.5
            rung = stepped(rung, press, reason, now)
        shares.append(round(rung.share, 3))
    return shares


@pytest.mark.parametrize(
    ("phases", "shares"),
    [
        ([(60, QUIET)], [1.0]),
        # gradual, and as fast as it is pressed
        ([(0.5, QUIET), (2, PRESSED)], [1.0, 0.5]),
        ([(0.5, QUIET), (2, (0.5, "ttft"))], [1.0, 0.75]),
        # never all of it
        ([(0.5, QUIET), (60, PRESSED)], [1.0, LEAST_SHARE]),
        # up only after five seconds of calm, and slower than down
        ([(0.5, QUIET), (2, PRESSED), (5, QUIET), (3, QUIET)], [1.0, 0.5, 0.5, 0.8]),
        ([(0.5, QUIET), (2, PRESSED), (12, QUIET)], [1.0, 0.5, 1.0]),
        # a moment of calm is none
        ([(0.5, QUIET), (2, PRESSED), (4, QUIET), (0.5, (0.1, "ttft")), (4, QUIET)], [1.0, 0.5, 0.5, 0.488, 0.488]),
        # pressed again while it rises: it waits twice as long, then four times
        ([(0.5, QUIET), (2, PRESSED), (6, QUIET), (1, PRESSED), (10, QUIET), (2, QUIET)],
         [1.0, 0.5, 0.6, 0.35, 0.35, 0.55]),
        ([(0.5, QUIET), (2, PRESSED), (6, QUIET), (1, PRESSED), (12, QUIET), (1, PRESSED), (20, QUIET)],
         [1.0, 0.5, 0.6, 0.35, 0.55, 0.3, 0.3]),
        # a relapse soon after it had all of it
        ([(0.5, QUIET), (2, PRESSED), (15, QUIET), (1, PRESSED), (9, QUIET)], [1.0, 0.5, 1.0, 0.75, 0.75]),
    ],
)  # fmt: skip
def test_share(phases: list[tuple[float, tuple[float, str]]], shares: list[float]) -> None:
    assert play(Rung(), *phases) == pytest.approx(shares, abs=0.051)


@pytest.mark.parametrize(
    ("phases", "shares"),
    [
        # what only foretells trouble takes half at most, and what no lower tier mends a fifth
        ([(0.5, QUIET), (60, (1.0, "kv"))], [1.0, 0.5]),
        ([(0.5, QUIET), (60, (1.0, "lost"))], [1.0, 0.5]),
        ([(0.5, QUIET), (60, (1.0, "dependencies"))], [1.0, 0.8]),
        # and holds what was taken for a better reason
        ([(0.5, QUIET), (3, PRESSED), (60, (1.0, "kv"))], [1.0, 0.25, 0.25]),
        ([(0.5, QUIET), (60, (1.0, "kv")), (1, PRESSED)], [1.0, 0.5, 0.25]),
    ],
)
def test_how_far_each_signal_reaches(
    phases: list[tuple[float, tuple[float, str]]], shares: list[float]
) -> None:
    assert play(Rung(), *phases) == pytest.approx(shares, abs=0.051)


def test_an_incident_is_forgiven() -> None:
    rung = Rung(relapses=3, calm_since=100.0, as_of=159.0)
    assert stepped(rung, 0.0, "", 159.5).relapses == 3
    assert stepped(rung, 0.0, "", 160.5).relapses == 0


@pytest.mark.parametrize(
    ("share", "parts"),
    [
        (1.0, (1.0, 1.0, 1.0)),
        # of 2 critical, 5 standard, 3 sheddable a second
        (0.9, (1.0, 1.0, 2 / 3)),
        (0.7, (1.0, 1.0, 0.0)),
        (0.45, (1.0, 0.5, 0.0)),
        (0.2, (1.0, 0.0, 0.0)),
        (0.1, (0.5, 0.0, 0.0)),
        (0.0, (0.0, 0.0, 0.0)),
    ],
)
def test_who_goes_down_first(share: float, parts: tuple[float, float, float]) -> None:
    assert tuple(admitted(share, rank, (0.0, 2.0, 7.0), 10.0) for rank in range(3)) == pytest.approx(parts)


@pytest.mark.parametrize(("share", "part"), [(1.0, 1.0), (0.5, 1.0), (0.0, 0.0)])
def test_without_traffic_a_first_request_is_let_in_unless_nothing_is(share: float, part: float) -> None:
    assert admitted(share, 1, (0.0, 0.0, 0.0), 0.0) == part
