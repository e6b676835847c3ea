"""uvicorn's HTTP protocol with bounds: what a connection may take, how long, and what is refused before anybody reads it.

llhttp, which parses, is strict about how a message is framed: two lengths, a length beside chunks, folded headers, bare
line feeds and control characters end in an error there. Here that error gets its answer, and what llhttp does not bound
is bounded: sizes, counts and times. A connection whose framing is in doubt is never used again.
"""

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.connections import Stage
from gateway.errors import BadRequest, ClientError, HeadTooLarge, NoRoom, TimedOut, UrlTooLong
from gateway.http import HttpApi

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}


class GuardedHttpProtocol(HttpToolsProtocol):
    """One client connection within the limits of the config."""

    stage: Stage = "fresh"
    address = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._api: HttpApi = self.config.app  # type: ignore[assignment]
        self._in_head = self._in_body = False
        self._read_bytes = self._begun_with_bytes = self._idle_bytes = self._owed_bytes = 0
        self._mistake: ClientError | None = None
        self._unread: asyncio.TimerHandle | None = None

    # the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        if not self._api.connections.enter(self, self.loop.time()):
            self._refuse(NoRoom())

    def connection_lost(self, exc: Exception | None) -> None:
        self._api.connections.leave(self)
        self._stop_waiting_for_reader()
        super().connection_lost(exc)
        # They know each other. Whatever needs the garbage collector to go makes it run for tens of milliseconds, at a bad time.
        self.cycle = None  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._read_bytes = len(data)
        self._idle_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._mistake or BadRequest("this is no HTTP request that can be read"))
        if not self.transport.is_closing():
            self._settle()

    def _parse(self, data: bytes) -> None:
        while data:
            if self._owed_bytes:
                data = self._take_owed(data)
                continue
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # The offer is not taken: what follows is this request's body, and then the next request.
                data = data[upgrade.args[0] :]
            else:
                return

    def _take_owed(self, data: bytes) -> bytes:
        """Takes the body of a request that offered an upgrade, behind whose head the parser stops; what is left."""
        body, rest = data[: self._owed_bytes], data[self._owed_bytes :]
        self._owed_bytes -= len(body)
        self.on_body(body)
        if not self._owed_bytes:
            self.on_message_complete()
        return rest

    def _settle(self) -> None:
        """Has the watch know what the connection is about, and ends it when more came than a head may be."""
        stage = self._stage()
        if stage != self.stage:
            self._api.connections.move(self, stage, self.loop.time())
        if stage in ("head", "body") and self._idle_bytes > self._api.limits().max_head_bytes:
            self._refuse(HeadTooLarge())

    def _stage(self) -> Stage:
        is_answered = self.cycle is None or self.cycle.response_complete
        if self._in_body and not self.pipeline:
            return "body"
        if not is_answered or self.pipeline:
            return "busy"
        if self._in_head:
            return "head"
        return "fresh" if self.cycle is None else "idle"

    def on_response_complete(self) -> None:
        """Goes on with the next request; the watch takes the place of uvicorn's timer, which the first byte ends."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        self._settle()

    # the parser

    def on_message_begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._in_head, self._idle_bytes, self._begun_with_bytes = True, 0, self._read_bytes

    def on_url(self, url: bytes) -> None:
        # mypyc knows nothing of attributes of uvicorn's, and adds to none in place.
        self.url = self.url + url
        if len(self.url) > self._api.limits().max_url_bytes:
            self._object(UrlTooLong())

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_body:
            # A trailer: nothing that comes behind a body may say anything about it.
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        limits = self._api.limits()
        if len(self.headers) > limits.max_headers or (
            self._begun_with_bytes + self._idle_bytes > limits.max_head_bytes
            and sum(len(name) + len(value) for name, value in self.headers) > limits.max_head_bytes
        ):
            self._object(HeadTooLarge())
        if self.parser.should_upgrade():
            self._owed_bytes = self._body_of_upgrade()
        self._in_head, self._in_body = False, True
        self.begin()

    def _body_of_upgrade(self) -> int:
        """How large the body is of a request for which the parser reads none."""
        headers = dict(self.headers)
        if self.parser.get_method() == b"CONNECT" or b"transfer-encoding" in headers:
            self._object(BadRequest("this upgrade is not offered here"))
        return int(headers.get(b"content-length", b"0"))

    def begin(self) -> None:
        """The head is whole and within bounds: uvicorn's own way with it begins."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._owed_bytes:
            self._in_body = False
            super().on_message_complete()

    # refusals

    def _object(self, mistake: ClientError) -> None:
        """Out of a callback of the parser, which passes it on as its own error."""
        self._mistake = mistake
        raise mistake

    def _refuse(self, mistake: ClientError) -> None:
        """Says why, unless something has been said already, and closes the connection."""
        is_answered = self.cycle is None or self.cycle.response_complete
        if is_answered or (self._in_body and not self.cycle.response_started and not self.pipeline):
            self.transport.write(_last_words(mistake))
        self.transport.close()

    def give_way(self) -> None:
        self.transport.close()

    def time_out(self) -> None:
        if self.stage in ("head", "body"):
            self._refuse(TimedOut())
        else:
            self.transport.close()

    # a client that does not read

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._unread is None:
            patience_s = self._api.limits().write_timeout_s
            self._unread = self.loop.call_later(patience_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_waiting_for_reader()

    def _stop_waiting_for_reader(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _last_words(mistake: ClientError) -> bytes:
    """A whole response, after which the connection ends."""
    body = mistake.to_json()
    lines = [f"{name}: {value}" for name, value in mistake.headers.items()]
    lines += ["content-type: application/json", f"content-length: {len(body)}", "connection: close", "", ""]
    return STATUS_LINES[mistake.status] + "\r\n".join(lines).encode() + body
