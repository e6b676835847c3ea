"""What happened lately, in words: a bounded log in memory, for the page and the terminal, that needs no store."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from gateway.policy.health import Health
from gateway.reason_words import in_words

KEPT = 200
SAME_WITHIN_S = 10.0
"""The same event again within this time is counted, not listed."""

Kind = Literal["health", "breaker", "ladder", "shed", "resume", "store", "gateway"]


@dataclass(slots=True)
class Event:
    """One line of the log. `at` and `last_at` are unix seconds: when it happened first and last."""

    at: float
    kind: Kind
    text: str
    last_at: float
    count: int = 1


class EventLog:
    """The last events; the oldest go. `tell` hears of each that is new."""

    def __init__(self, tell: Callable[[Event], None] | None = None, kept: int = KEPT) -> None:
        self._tell = tell
        self._events: deque[Event] = deque(maxlen=kept)

    def add(self, kind: Kind, text: str, at: float) -> None:
        """Enters an event; one that was just entered is counted up."""
        if not self._is_repeated(text, at):
            fresh = Event(at, kind, text, at)
            self._events.append(fresh)
            if self._tell is not None:
                self._tell(fresh)

    def recall(self, events: Iterable[Event]) -> None:
        """Takes over what others told earlier, oldest first: it is shown, and not told again."""
        since = list(self._events)
        self._events.clear()
        for event in events:
            if not self._is_repeated(event.text, event.at):
                self._events.append(event)
        self._events.extend(since)

    def _is_repeated(self, text: str, at: float) -> bool:
        """Whether the same has just been entered; then that is counted up."""
        for event in reversed(self._events):
            if at - event.last_at > SAME_WITHIN_S:
                break
            if event.text == text:
                event.count, event.last_at = event.count + 1, max(at, event.last_at)
                return True
        return False

    def newest(self, count: int = KEPT) -> list[Event]:
        """Newest first."""
        return sorted(self._events, key=lambda e: e.last_at)[::-1][:count]


HEALTH = {
    "starting": "is starting",
    "ready": "is ready",
    "suspect": "is suspect",
    "down": "is down",
    "quarantined": "is quarantined",
    "ejected": "is ejected",
    "draining": "is draining",
}
BREAKER = {"closed": "closed", "open": "opened", "half-open": "lets probes through"}


def health_text(model: str, tier: str, replica: str, old: Health, new: Health) -> str:
    """A change of a replica's health."""
    was = f"; it was {old.state}{_because(old.reason)}" if old.state != "starting" else ""
    return f"{replica} ({model}, {tier}) {HEALTH[new.state]}{_because(new.reason)}{was}"


def breaker_text(model: str, tier: str, replica: str, state: str) -> str:
    """A change of a replica's breaker."""
    return f"the breaker of {replica} ({model}, {tier}) {BREAKER.get(state, state)}"


def reload_text(before: Set[str], after: Set[str], needs_restart: Sequence[str] = ()) -> str:
    """What a reload changed: to a client, a model that is gone is a 404. And what it could not change."""
    gone, new = sorted(before - after), sorted(after - before)
    told = [f"no longer served: {', '.join(gone)}"] if gone else []
    told += [f"now served, too: {', '.join(new)}"] if new else []
    told += [f"only a restart changes: {', '.join(needs_restart)}"] if needs_restart else []
    return "; ".join(["a new config is in force", *told])


def refusal_text(places: str) -> str:
    """That a config was refused, and where it is wrong."""
    where = f" ({places})" if places else ""
    more = "`graceway check -c FILE` says why, and a restart would meet it"
    return f"a new config was refused{where}, the one before stays in force; {more}"


def _because(reason: str) -> str:
    return f" ({in_words(reason)})" if reason else ""


def lasting(seconds: float) -> str:
    """A span of time as people say it."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
