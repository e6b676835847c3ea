"""The event log, its words, and who fills it."""

import pytest

from gateway.chronicle import Chronicle, Look
from gateway.config_standing import places_of
from gateway.events import EventLog, breaker_text, health_text, lasting, refusal_text, reload_text
from gateway.policy.health import Health
from gateway.standing import Standing

WELL = Look(Standing("best", "chat is served by primary"), {"primary": True, "small": True})
GONE = Look(
    Standing("degraded", "chat is served by small because it is so", "quality 0.6", "primary"),
    {"primary": False, "small": True},
)


def test_newest_first_and_bounded() -> None:
    log = EventLog(kept=3)
    for n in range(5):
        log.add("health", f"event {n}", 100.0 * n)
    assert [e.text for e in log.newest()] == ["event 4", "event 3", "event 2"]
    assert [e.text for e in log.newest(1)] == ["event 4"]


def test_the_same_again_is_counted() -> None:
    log = EventLog()
    for now in (100.0, 101.0, 105.0):
        log.add("breaker", "it opened", now)
        log.add("breaker", "it closed", now)
    log.add("breaker", "it opened", 200.0)
    assert [(e.text, e.at, e.last_at, e.count) for e in log.newest()] == [
        ("it opened", 200.0, 200.0, 1),
        ("it closed", 100.0, 105.0, 3),
        ("it opened", 100.0, 105.0, 3),
    ]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (Health(), Health("ready", ""), "a:1 (org/chat, primary) is ready"),
        (
            Health("suspect", "hung"),
            Health("down", "refused"),
            "a:1 (org/chat, primary) is down (connection refused); it was suspect (no progress)",
        ),
        (
            Health("down", "refused"),
            Health("ready", ""),
            "a:1 (org/chat, primary) is ready; it was down (connection refused)",
        ),
    ],
)
def test_words_of_health(old: Health, new: Health, text: str) -> None:
    assert health_text("org/chat", "primary", "a:1", old, new) == text


def test_words_of_breakers() -> None:
    assert breaker_text("chat", "primary", "a:1", "open") == "the breaker of a:1 (chat, primary) opened"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h 0 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


class Watched:
    """A chronicle that sees what a test shows it, half a second apart."""

    def __init__(self) -> None:
        self.log = EventLog()
        self.looks = {"chat": WELL}
        self.store_failure: str | None = None
        self.chronicle = Chronicle(self.log, lambda: self.looks, lambda: self.store_failure)
        self.now = 1000.0

    def see(self, look: Look, seconds: float = 0.0) -> None:
        self.looks = {"chat": look}
        until = self.now + seconds
        while True:
            self.chronicle.tick(self.now)
            self.now += 0.5
            if self.now > until:
                return

    @property
    def told(self) -> list[tuple[float, str]]:
        return [(e.at, e.text) for e in reversed(self.log.newest())]


def test_an_outage_has_a_beginning_and_an_end() -> None:
    watched = Watched()
    watched.see(WELL)
    watched.see(GONE, 60.0)
    assert watched.chronicle.since("chat", GONE.standing) == 1000.5
    well = Look(WELL.standing, WELL.serving, lower_answers=40, sheds=2)
    watched.see(well)
    assert watched.told == [
        (1000.5, "primary of chat can't serve"),
        (1000.5, "chat became degraded: chat is served by small because it is so; quality 0.6"),
        (watched.now - 0.5, "primary of chat can serve again, after 1 min"),
        (
            watched.now - 0.5,
            "chat is no longer degraded, after 1 min (40 answers from lower tiers, 2 refused): chat is served by primary",
        ),
    ]
    assert watched.chronicle.since("chat", well.standing) is None


def test_a_blink_is_not_told() -> None:
    watched = Watched()
    for look in (WELL, GONE, WELL, GONE, WELL):
        watched.see(look)
    assert watched.told == []


def test_broken_streams_are_told_by_number() -> None:
    watched = Watched()
    watched.see(Look(WELL.standing, WELL.serving, resumed=5, given_up=5))  # from before it looked
    watched.see(Look(WELL.standing, WELL.serving, resumed=8, given_up=6))
    assert [text for _, text in watched.told] == [
        "3 streams broke and continued on another replica (chat)",
        "1 stream broke and ended with an error event (chat)",
    ]


def test_the_store_goes_and_comes() -> None:
    watched = Watched()
    watched.see(WELL)
    watched.store_failure = "SET: no answer within 50 ms"
    watched.see(WELL, 30.0)
    watched.store_failure = None
    watched.see(WELL)
    assert [text for _, text in watched.told] == [
        "the state store is not available (SET: no answer within 50 ms); requests go on without it",
        "the state store is available again, after 30 s",
    ]


def test_a_model_that_a_reload_removed_is_forgotten() -> None:
    watched = Watched()
    watched.see(GONE, 5.0)
    watched.looks = {}
    watched.chronicle.tick(watched.now)
    assert watched.chronicle.since("chat", GONE.standing) is None


def test_since_when_there_is_less_to_fall_back_on() -> None:
    fewer = Look(Standing("reduced", "chat is served by primary; of its 2 replicas 1 is down"), WELL.serving)
    watched = Watched()
    watched.see(WELL)
    watched.see(fewer, 60.0)
    assert watched.chronicle.since("chat", fewer.standing) == 1000.5
    watched.see(WELL)
    assert watched.chronicle.since("chat", WELL.standing) is None
    assert watched.told == []


@pytest.mark.parametrize(
    ("before", "after", "waiting", "text"),
    [
        ({"a"}, {"a"}, (), "a new config is in force"),
        ({"a", "c", "b"}, {"a"}, (), "a new config is in force; no longer served: b, c"),
        ({"a"}, {"b"}, (), "a new config is in force; no longer served: a; now served, too: b"),
        (
            {"a"},
            {"a"},
            ("server.port", "log.level"),
            "a new config is in force; only a restart changes: server.port, log.level",
        ),
    ],
)
def test_words_of_a_reload(before: set[str], after: set[str], waiting: tuple[str, ...], text: str) -> None:
    assert reload_text(before, after, waiting) == text


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ("/etc/graceway/g.yaml:11: unknown key 'slotz'", " (g.yaml:11)"),
        ("g.yaml:3: 'api_key' must be text, not [sk-secret]\ng.yaml:9: also", " (g.yaml:3, g.yaml:9)"),
        ("g.yaml: there is no such file", ""),
        ("something else: sk-secret", ""),
    ],
)
def test_a_refused_config_is_told_without_what_is_in_it(wrong: str, where: str) -> None:
    said = refusal_text(places_of(wrong))
    assert said.startswith(f"a new config was refused{where}, the one before stays in force; `graceway check")
    assert "secret" not in said
