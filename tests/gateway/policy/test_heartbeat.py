"""When a missing heartbeat means something."""

import pytest

from gateway.policy.heartbeat import Heartbeats


def beating(*times: float, expected_s: float = 1.0) -> Heartbeats:
    heart = Heartbeats(expected_s)
    for time in times:
        heart.beat(time)
    return heart


REGULAR = tuple(float(t) for t in range(1, 21))
JITTERY = (1.0, 2.0, 4.5, 5.0, 7.5, 8.0, 10.5, 11.0, 13.5, 14.0)


@pytest.mark.parametrize(
    ("times", "silence_s", "verdict"),
    [
        (REGULAR, 1.0, "alive"),
        (REGULAR, 2.9, "alive"),
        (REGULAR, 3.5, "suspicious"),
        (REGULAR, 6.9, "suspicious"),
        (REGULAR, 7.5, "dead"),
        (JITTERY, 3.5, "alive"),  # its own rhythm allows for more
        (JITTERY, 6.5, "suspicious"),
        ((1.0,), 4.0, "alive"),  # nothing learnt yet: the declared interval stands in for everything
        ((1.0,), 6.0, "suspicious"),
    ],
)
def test_silence_is_judged_by_the_hearts_own_rhythm(
    times: tuple[float, ...], silence_s: float, verdict: str
) -> None:
    assert beating(*times).verdict(times[-1] + silence_s) == verdict


def test_a_beat_ends_the_suspicion() -> None:
    heart = beating(*REGULAR)
    assert heart.verdict(30.0) == "dead"
    heart.beat(30.0)
    assert heart.verdict(30.5) == "alive"
