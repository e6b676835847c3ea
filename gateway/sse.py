"""Server-sent events from arbitrary pieces of bytes: any split parses, of an event and of a UTF-8 character too."""

from collections.abc import Sequence

_END = b"\n\n"
MAX_EVENT_BYTES = 4 * 1024 * 1024


class EventTooLarge(ValueError):  # noqa: N818
    """An event without an end."""


class EventSplitter:
    """Collects bytes and yields whole events. Comments, names and ids are dropped; OpenAI's API has none."""

    __slots__ = ("_held", "_rest")

    def __init__(self) -> None:
        self._held = self._rest = b""

    def events(self, data: bytes) -> list[bytes]:
        """The events that `data` completes, as they came, without the empty line at their ends.

        Raises:
            EventTooLarge: an unfinished event is larger than 4 MiB.
        """
        if self._held or b"\r" in data:
            data = self._lines(data)
        events = (self._rest + data if self._rest else data).split(_END)
        self._rest = events.pop()
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLarge(f"an event of more than {MAX_EVENT_BYTES} bytes")
        return events

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that `data` completes, without `data: ` and line ends.

        Raises:
            EventTooLarge: an unfinished event is larger than 4 MiB.
        """
        return [payload for event in self.events(data) if (payload := data_of(event))]

    def _lines(self, data: bytes) -> bytes:
        """With LF for CRLF. A CR at the very end may be half of one: it waits for its LF."""
        data = self._held + data
        self._held = b"\r" if data.endswith(b"\r") else b""
        return data.removesuffix(b"\r").replace(b"\r\n", b"\n")


def data_of(event: bytes) -> bytes:
    """The data of an event; empty when it has none."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def joined(events: Sequence[bytes]) -> bytes:
    """Events again as they came."""
    return b"".join([event + _END for event in events])


def frame(payload: bytes) -> bytes:
    """An event with this data."""
    return b"data: " + payload + b"\n\n"


DONE = b"[DONE]"
DONE_FRAME = frame(DONE)
