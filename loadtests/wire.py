"""HTTP/1.1 for the simulated engine: a connection, its requests in order, its answers whole or in chunks."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import httptools

log = logging.getLogger(__name__)

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, read whole. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Pending(Protocol):
    """An answer under way."""

    def abandon(self) -> None:
        """The client has gone."""


class Connection(asyncio.Protocol):
    """A client's connection: one answer at a time; what `serve` returns is told if the client goes."""

    def __init__(self, serve: Callable[[Request, "Connection"], Pending | None]) -> None:
        self._serve = serve
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[tuple[Request, bool]] = deque()
        self._transport: asyncio.Transport | None = None
        self._pending: Pending | None = None
        self._is_busy = False
        self._keeps_alive = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._pending is not None:
            self._pending.abandon()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            log.exception("a request failed in a way that nobody foresaw")
            self.reply(500, b'{"error":"the engine failed"}')
            self.close()
        except httptools.HttpParserError:
            self.reply(400, b'{"error":"not HTTP"}')
            self.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        path = self._url.decode("latin-1").partition("?")[0]
        request = Request(method, path, self._headers, b"".join(self._body))
        self._queue.append((request, self._parser.should_keep_alive()))
        self._next()

    def _next(self) -> None:
        while self._queue and not self._is_busy:
            request, self._keeps_alive = self._queue.popleft()
            self._is_busy = True
            pending = self._serve(request, self)
            self._pending = pending if self._is_busy else None

    def _finished(self) -> None:
        self._is_busy = False
        self._pending = None
        if not self._keeps_alive:
            self.close()
        elif self._queue:
            asyncio.get_running_loop().call_soon(self._next)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def reply(
        self,
        status: int,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """A whole answer."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = (
            f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\nserver: uvicorn\r\n"
            f"content-type: {content_type}\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
        )
        self.write(head.encode("latin-1") + body)
        self._finished()

    def begin_stream(self) -> None:
        self.write(_STREAM_HEAD)

    def chunk(self, data: bytes) -> None:
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self.write(_LAST_CHUNK)
        self._finished()

    def close(self, *, reset: bool = False) -> None:
        """Closes; `reset` throws away what is not sent yet."""
        if self._transport is None:
            return
        if reset:
            self._transport.abort()
        else:
            self._transport.close()
