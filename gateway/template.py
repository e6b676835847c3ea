"""A short cut for the plain middle of a stream: events that differ from the one before in their text and token id only.

An engine writes the same bytes around every token. Once they are known, an event is taken apart by comparing bytes, at a
third of the cost of reading and writing its JSON. Whatever does not fit the template in every byte goes the long way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

_IDS = b'"token_ids":['
_LONGEST_ID = 9
_ZERO = ord("0")


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """What stands before the text, between text and token id, and after it; and around the text in what the client gets."""

    before: bytes
    between: bytes
    after: bytes
    told_before: bytes
    told_after: bytes

    def read(self, events: Sequence[bytes], start: int) -> "PlainEvents":
        """The events from `start` on that fit, up to the first one that does not."""
        before, between, after = self.before, self.between, self.after
        begin, end = len(before), -len(after)
        found = PlainEvents()
        for number in range(start, len(events)):
            event = events[number]
            if not event.startswith(before) or not event.endswith(after):
                break
            text, _, token_id = event[begin:end].partition(between)
            # A quote in the text may be the end of it, and of what follows nothing would be known.
            if b'"' in text or b"\\" in text or not _is_id(token_id) or not _is_plain(text):
                break
            found.texts.append(text)
            found.ids.append(int(token_id))
        return found

    def tell(self, texts: Sequence[bytes]) -> bytes:
        """The client's frames for these texts."""
        begin, end = self.told_before, self.told_after
        return begin + (end + begin).join(texts) + end


@dataclass(slots=True)
class PlainEvents:
    """Texts (JSON, without its quotes) and token ids, one each of an event."""

    texts: list[bytes] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


def _is_id(digits: bytes) -> bool:
    """Whether it is a token id as JSON has it."""
    return digits.isdigit() and len(digits) <= _LONGEST_ID and (len(digits) == 1 or digits[0] != _ZERO)


def _is_plain(text: bytes) -> bool:
    """Whether it is UTF-8 without what JSON has escaped; whatever else is rare goes the long way, too."""
    try:
        return bool(text) and text.decode().isprintable()
    except UnicodeDecodeError:
        return False


def learn(payload: bytes, told: bytes, text: str) -> EventTemplate | None:
    """The template of an event with one choice, this text and one token id; `told` is the data that the client got."""
    quoted = orjson.dumps(text)
    before, found, rest = payload.partition(quoted)
    told_before, told_found, told_rest = told.partition(quoted)
    head, has_ids, tail = rest.partition(_IDS)
    token_id, closed, after = tail.partition(b"]")
    if (
        not (found and told_found and has_ids and closed)
        or not token_id.isdigit()
        or quoted in told_rest + rest
    ):
        return None
    return EventTemplate(
        before=b"data: " + before + b'"',
        between=b'"' + head + _IDS,
        after=closed + after,
        told_before=b"data: " + told_before + b'"',
        told_after=b'"' + told_rest + b"\n\n",
    )
