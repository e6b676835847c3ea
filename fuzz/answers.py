"""What a replica answers: HTTP, server-sent events, and the events themselves."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast, get_args

import orjson

from fuzz.grammar import fields
from fuzz.pieces import cut, seeded
from gateway.failure import ExchangeFailed
from gateway.http_client import Connection
from gateway.journal import Journal
from gateway.legs import Target, first_leg
from gateway.request import Kind, parse_request
from gateway.sse import EventSplitter, EventTooLarge

FIELDS = (
    *(
        "id",
        "object",
        "created",
        "model",
        "choices",
        "usage",
        "error",
        "prompt_token_ids",
        "index",
        "delta",
        "text",
    ),
    *(
        "finish_reason",
        "token_ids",
        "role",
        "content",
        "tool_calls",
        "prompt_tokens",
        "completion_tokens",
        "logprobs",
    ),
    *("total_tokens", "stop_reason", "message", "graceway"),
)
_EVENT = {"id": "c", "choices": [{"index": 0, "text": "a", "delta": {"content": "a"}, "token_ids": [1]}]}
_LIMIT_BYTES = 1 << 20


class _Wire:
    """The transport of a connection to nowhere."""

    def __init__(self) -> None:
        self.is_open = True

    def write(self, data: bytes) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return not self.is_open

    def abort(self) -> None:
        self.is_open = False


def events(data: bytes) -> None:
    """Server-sent events are the same however they were cut."""
    seed, rest = seeded(data)
    at_once, in_pieces = _split([rest]), _split(cut(rest, seed))
    if at_once != in_pieces:
        raise AssertionError(f"{at_once!r} at once, {in_pieces!r} in pieces")


def _split(pieces: Iterable[bytes]) -> list[bytes]:
    splitter, found = EventSplitter(), []
    with suppress(EventTooLarge):
        for piece in pieces:
            found += splitter.feed(piece)
    return found


def response(data: bytes) -> None:
    """A replica's HTTP response ends as one status and body, or fails, however it was cut."""
    seed, rest = seeded(data)
    ends = seed & 1 == 0
    at_once, in_pieces = _exchange([rest], ends), _exchange(cut(rest, seed), ends)
    if at_once != in_pieces:
        raise AssertionError(f"{at_once!r} at once, {in_pieces!r} in pieces")


class _Clock:
    """The part of an event loop that an exchange without a network uses."""

    def create_future(self) -> Any:
        raise AssertionError("nothing more will come, so nobody may wait")

    def call_later(self, delay_s: float, callback: object) -> Any:
        return None


def _exchange(pieces: Iterable[bytes], ends: bool) -> tuple[int, bytes] | str:
    """The status and body; or the word for what went wrong."""
    connection = Connection(cast(asyncio.AbstractEventLoop, _Clock()), lambda _: None)
    wire = _Wire()
    connection.connection_made(cast(asyncio.Transport, wire))
    connection.send(b"GET / HTTP/1.1\r\n\r\n")
    for piece in pieces:
        if wire.is_open:
            connection.data_received(piece)
    if ends or not wire.is_open:
        connection.connection_lost(None)
    return _outcome(connection)


def _outcome(connection: Connection) -> tuple[int, bytes] | str:
    try:
        status = _now(connection.head())
        return status, _now(connection.read_all(_LIMIT_BYTES))
    except ExchangeFailed as failed:
        return failed.failure
    except AssertionError:
        return "waits"


def _now(awaited: Any) -> Any:
    """The result of something that has all it needs."""
    try:
        awaited.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def stream(data: bytes) -> None:
    """The events of a stream, one a line, into the journal."""
    seed, rest = seeded(data)
    _take(seed, rest.split(b"\n"))


def stream_fields(data: bytes) -> None:
    """The same, where every event is JSON, with the fields of an answer and any values."""
    seed, rest = seeded(data)
    events = [_EVENT | fields(part, FIELDS) for part in rest.split(b"\n")]
    with suppress(orjson.JSONEncodeError):
        _take(seed, [orjson.dumps(event) for event in events])


def _take(seed: int, payloads: Iterable[bytes]) -> None:
    """What the client gets of an answer's events is whole JSON, an event each."""
    kind = "chat" if seed & 1 else "text"
    body = {"model": "chat", "messages": [{}], "prompt": "", "stream": bool(seed & 2), "max_tokens": 9}
    request = parse_request("chat" if kind == "chat" else "text", orjson.dumps(body), {})
    journal, out = Journal(request), list[bytes]()
    leg = first_leg(request, Target("primary", "m"))
    leg.is_continuation = leg.is_splice = bool(seed & 4)
    journal.begin(leg)
    with suppress(ExchangeFailed):
        for payload in payloads:
            if payload and not journal.has_ended:
                journal.take(payload, out)
        journal.release_held(out)
    journal.close(out)
    orjson.loads(journal.whole())
    for frame in out:
        payload = frame.removeprefix(b"data: ").removesuffix(b"\n\n")
        if b"\n" in payload or not isinstance(orjson.loads(payload), dict):
            raise AssertionError(f"no event: {frame!r}")
    _ = journal.used_tokens, journal.is_empty


def whole(data: bytes) -> None:
    """An answer in one piece."""
    for kind in get_args(Kind):
        body = {"model": "m", "messages": [{}], "prompt": "", "input": "x", "max_tokens": 1}
        journal = Journal(parse_request(kind, orjson.dumps(body), {}))
        with suppress(ExchangeFailed):
            journal.take_whole(data)
        _ = journal.used_tokens, journal.said
