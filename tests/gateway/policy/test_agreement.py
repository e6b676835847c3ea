"""Who leads, what presses all of them, and how one follows."""

import pytest

from gateway.policy.agreement import Peer, Voice, following, leader, pooled, voice_of
from gateway.policy.ladder import Rung


def voice(press: float = 0.0, reason: str = "", *, sees: bool = True, has_replicas: bool = True) -> Voice:
    return voice_of(Rung(), press, reason, 100.0, has_replicas=has_replicas, sees=sees)


BLIND, CUT_OFF = voice(sees=False), voice(has_replicas=False)


@pytest.mark.parametrize(
    ("voices", "expected"),
    [
        ([], (0.0, "")),
        ([voice()], (0.0, "")),
        ([voice(0.8, "ttft")], (0.8, "ttft")),
        # who has no traffic doesn't say that all is well
        ([voice(0.8, "ttft"), BLIND, BLIND], (0.8, "ttft")),
        # and is heard when its probes show a loss
        ([voice(0.4, "lost", sees=False)], (0.4, "lost")),
        # two who differ meet half-way; of three, the odd one out moves nobody
        ([voice(1.0, "ttft"), voice()], (0.5, "ttft")),
        ([voice(1.0, "errors"), voice(), voice()], (0.0, "")),
        ([voice(1.0, "errors"), voice(0.2, "queue"), voice()], (0.2, "errors")),
        ([voice(1.0, "queue"), voice(0.6, "ttft"), voice(0.6, "ttft")], (0.6, "queue")),
        # who reaches no replica knows nothing of the tier
        ([voice(), CUT_OFF, voice(1.0, "lost", has_replicas=False)], (0.0, "")),
    ],
)
def test_what_presses_all(voices: list[Voice], expected: tuple[float, str]) -> None:
    press, reason = pooled(voices)
    assert (press, reason) == (pytest.approx(expected[0]), expected[1])


@pytest.mark.parametrize(
    ("peers", "expected"),
    [
        ([], None),
        ([("a", 5.0, voice())], "a"),
        ([("a", 9.0, voice()), ("b", 5.0, voice()), ("c", 7.0, voice())], "b"),
        ([("b", 5.0, voice()), ("a", 5.0, voice())], "a"),
        ([("a", 9.0, voice()), ("b", 5.0, CUT_OFF)], "a"),
        ([("b", 5.0, CUT_OFF)], None),
    ],
)
def test_who_leads(peers: list[tuple[str, float, Voice]], expected: str | None) -> None:
    led = leader(Peer(*peer) for peer in peers)
    assert (led and led.gateway) == expected


@pytest.mark.parametrize(
    ("mine", "leads", "passed_s", "expected"),
    [
        (1.0, 0.9, 0.5, 0.9),
        (1.0, 0.2, 0.5, 0.75),
        (0.3, 1.0, 0.5, 0.55),
        (0.3, 0.4, 0.5, 0.4),
        # a gateway that was held up does not jump either
        (1.0, 0.1, 30.0, 0.5),
    ],
)
def test_how_one_follows(mine: float, leads: float, passed_s: float, expected: float) -> None:
    led = voice_of(Rung(leads, "ttft", 90.0, 2, True, 100.0), 0.0, "", 100.0, has_replicas=True, sees=True)
    rung = following(Rung(share=mine, as_of=500.0 - passed_s), led, 500.0)
    assert rung == Rung(pytest.approx(expected), "ttft", 490.0, 2, True, 500.0)
