"""A replica's health, as a table of what happens to it and where that leaves it."""

import pytest

from gateway.policy.health import Health, State, after_failure, after_pass, after_signal

UP_AFTER, DOWN_AFTER = 2, 3

TABLE: list[tuple[State, str, State]] = [
    # p: a probe passes, f: one fails, s: traffic shows trouble (suspect), q: it lies, e: slower than its peers
    ("starting", "", "starting"),
    ("starting", "p", "ready"),  # one is enough for a new one
    ("starting", "ff", "starting"),
    ("starting", "fff", "down"),
    ("starting", "ffp", "ready"),
    ("ready", "ff", "ready"),
    ("ready", "fff", "down"),
    ("ready", "ffpff", "ready"),  # in a row
    ("ready", "s", "suspect"),
    ("ready", "sp", "suspect"),
    ("ready", "spp", "ready"),
    ("ready", "sf", "down"),  # one is enough for a suspect
    ("ready", "spf", "down"),
    ("ready", "sps", "suspect"),
    ("ready", "spsp", "suspect"),  # trouble takes the pass back
    ("ready", "spspp", "ready"),
    ("ready", "q", "quarantined"),
    ("ready", "qp", "quarantined"),
    ("ready", "qpp", "ready"),
    ("ready", "qs", "quarantined"),  # nothing less hides it
    ("ready", "qfff", "down"),
    ("ready", "e", "ejected"),
    ("ready", "epp", "ready"),
    ("ready", "es", "ejected"),  # a failure does not shorten its time out
    ("down", "p", "down"),
    ("down", "pp", "ready"),
    ("down", "pfp", "down"),
    ("down", "s", "down"),
    ("down", "psp", "down"),
    ("draining", "ppp", "draining"),
    ("draining", "fff", "draining"),
    ("draining", "s", "draining"),
]


@pytest.mark.parametrize(("state", "events", "expected"), TABLE)
def test_where_it_leads(state: State, events: str, expected: State) -> None:
    health = Health(state, "before", since=1.0)
    for number, event in enumerate(events):
        health = step(health, event, 2.0 + number)
    assert health.state == expected
    assert health.is_ready == (expected == "ready")


def step(health: Health, event: str, now: float) -> Health:
    match event:
        case "p":
            return after_pass(health, UP_AFTER, now)
        case "f":
            return after_failure(health, "timeout", DOWN_AFTER, now)
    states: dict[str, State] = {"s": "suspect", "q": "quarantined", "e": "ejected"}
    return after_signal(health, states[event], "reset", now)


def test_since_and_reason_belong_to_the_state() -> None:
    ready = Health("ready", "", since=1.0)
    assert after_failure(ready, "timeout", 3, 2.0).since == 1.0
    suspect = after_signal(ready, "suspect", "reset", 3.0)
    assert (suspect.reason, suspect.since) == ("reset", 3.0)
    down = after_failure(suspect, "refused", 3, 4.0)
    assert (down.reason, down.since) == ("refused", 4.0)
    still = after_failure(down, "timeout", 3, 5.0)
    assert (still.reason, still.since) == ("timeout", 4.0)
    back = after_pass(after_pass(still, 2, 6.0), 2, 7.0)
    assert (back.reason, back.since) == ("", 7.0)
