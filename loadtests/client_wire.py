"""A lean HTTP/1.1 client connection: what measures a gateway must cost less than the gateway."""

import asyncio
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import httptools

Receive = Callable[[bytes, float], None]


class CutError(ConnectionError):
    """The connection ended before the response did."""


class ClientConnection(asyncio.Protocol):
    """One connection, one exchange at a time; body parts go to a receiver with the time of their arrival."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[None] | None = None
        self._receive: Receive | None = None
        self._now = 0.0
        self.status = 0
        self.headers: dict[str, str] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._fail(CutError(str(exc or "closed")))

    def data_received(self, data: bytes) -> None:
        self._now = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(CutError(f"not HTTP: {error}"))
            self.close()

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)

    def on_message_begin(self) -> None:
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._receive is not None:
            self._receive(body, self._now)

    def on_message_complete(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    async def exchange(self, request: bytes, receive: Receive) -> None:
        """Sends a whole request and returns when its response is whole; raises CutError."""
        if self._transport is None:
            raise CutError("closed")
        self.status = 0
        self._receive = receive
        self._done = self._loop.create_future()
        self._transport.write(request)
        await self._done

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connect(url: str) -> ClientConnection:
    """A connection to the server of a URL; raises OSError."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    _, connection = await loop.create_connection(ClientConnection, host, port)
    return connection


def post(url: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    """The bytes of a request."""
    extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = (
        f"POST {path} HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode("latin-1") + body
