"""A lean HTTP/1.1 client for the bytes between gateway and replica: one exchange a connection, kept alive in a pool.

On httptools (llhttp) and asyncio's transports. A general client costs more than all the rest of the gateway (measured:
its share of a request was 200 µs of 390 µs), and none lets another task break an exchange at once, as failover needs.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

import httptools

from gateway.failure import ExchangeFailed
from replicas.client_tls import NO_FILES, ClientTls

OK = 200
IDLE_S = 4.0
"""Idle connections are dropped before uvicorn, which serves vLLM, drops them (5 s)."""
READ_AHEAD_BYTES = 256 * 1024
MAX_HEADERS = 200


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a replica listens. `path` is put before every request's path."""

    host: str
    port: int
    tls: bool
    path: str

    @classmethod
    def of(cls, url: str) -> "Origin":
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        return cls(
            parts.hostname or "127.0.0.1", parts.port or (443 if tls else 80), tls, parts.path.rstrip("/")
        )

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


Sink = Callable[[bytes], Awaitable[None] | None]
END_MARK_S = 0.1
"""How long a connection waits for the end of a body whose content is already whole."""


def _ignore(_: bytes) -> None:
    return None


class Connection:
    """One connection and the exchange on it: an `asyncio.Protocol` by its methods. httptools calls the `on_` methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop, release: "Callable[[Connection], None]") -> None:
        self._loop, self._release = loop, release
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.idle_since = 0.0
        self.exchanges = 0
        self._start()

    def _start(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._is_paused = False
        self._is_complete = False
        self._has_head = False
        self._keeps_alive = False
        self._failed: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: Sink | None = None
        self._sink_waits_for: Awaitable[None] | None = None
        self._is_enough = False
        self._end_mark: asyncio.TimerHandle | None = None

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports satisfy asyncio.Transport without being one.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        parser = self._parser
        if parser is None:
            return
        try:
            parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(ExchangeFailed("malformed", str(error)))
            self.abort()
        if self._sink is not None and self._body:
            self._deliver(self._sink)
        if self._size > READ_AHEAD_BYTES and not self._is_paused and self._transport is not None:
            self._transport.pause_reading()
            self._is_paused = True

    def pause_writing(self) -> None:
        """A request that the socket does not take at once waits in the transport: it is there already."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        # The parser knows the connection: together they would wait for the garbage collector.
        self._transport = self._parser = None
        if exc is None and self._has_head and not self._is_complete and self._ends_at_eof():
            self._complete()
        elif not self._is_complete:
            self.fail(
                ExchangeFailed("reset" if exc else "cut", str(exc or "the connection closed before the end"))
            )

    def _ends_at_eof(self) -> bool:
        return "content-length" not in self.headers and "chunked" not in self.headers.get(
            "transfer-encoding", ""
        )

    # httptools' side

    def on_message_begin(self) -> None:
        if self._is_complete:
            # Nobody asked for it, and whoever comes next would take it for its answer. The parser passes this on.
            raise ExchangeFailed("malformed", "more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) < MAX_HEADERS:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        parser = self._parser
        assert parser is not None, "it is the one that calls"
        self.status = parser.get_status_code()
        if self.status >= 200:
            self._has_head = True
            self._keeps_alive = parser.should_keep_alive()
            if self._sink is None or self.status != OK:
                self._wake()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)
        self._size += len(body)
        if self._sink is None:
            self._wake()

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self._complete()
        else:
            self.headers.clear()

    def _complete(self) -> None:
        self._is_complete = True
        self._wake()
        if self._end_mark is not None:
            self._end_mark.cancel()
            self._give_back()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # the exchange's side

    @property
    def is_reusable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def idle_s(self) -> float:
        """How long nobody has used it."""
        return self._loop.time() - self.idle_since

    @property
    def is_untouched(self) -> bool:
        """Whether no byte of an answer has come."""
        return not self._has_head and not self.status

    def send(self, request: bytes) -> None:
        """Starts an exchange by writing a whole request."""
        if self.exchanges:
            self._start()
        self.exchanges += 1
        if self._transport is None:
            self.fail(ExchangeFailed("cut", "the connection was closed"))
        else:
            self._transport.write(request)

    async def head(self) -> int:
        """Waits for the status line and headers; the status."""
        while not self._has_head:
            await self._next()
        return self.status

    async def read(self) -> bytes:
        """What has come of the body since the last call, at least one byte; empty at the end."""
        while not self._body:
            if self._is_complete:
                return b""
            await self._next()
        return self._take_body()

    def _take_body(self) -> bytes:
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._size = 0
        if self._is_paused and self._transport is not None:
            self._transport.resume_reading()
            self._is_paused = False
        return data

    async def pump(self, sink: "Sink") -> None:
        """Gives the body to `sink` as it comes, in the step in which it is read; returns at its end, or after `enough`.

        It need not wait for the head: of an answer other than 200 it gives nothing, and returns when its head is there.

        Waking a task for each token costs more than all else that is done with one. Where the sink returns an awaitable
        (its client reads slowly), it gets nothing more until that is done.

        Raises:
            ExchangeFailed, and whatever the sink raises.
        """
        while not self._is_enough:
            self._sink = sink
            try:
                self._deliver(sink)
                while self._sink_waits_for is None and not self._is_enough:
                    if self._failed is not None:
                        # The sink's own objection counts even when the body's end came in the same read.
                        raise self._failed
                    if (self._is_complete and not self._body) or self._is_refusal:
                        return
                    await self._next()
            finally:
                self._sink = None
            if self._sink_waits_for is not None:
                blocked, self._sink_waits_for = self._sink_waits_for, None
                await blocked

    def _deliver(self, sink: "Sink") -> None:
        if not self._body or self._sink_waits_for is not None or self._is_enough or self._is_refusal:
            return
        try:
            self._sink_waits_for = sink(self._take_body())
        except Exception as error:  # it has to reach the task that pumps, whatever it is
            self._failed = error
            self.abort()
        if self._sink_waits_for is not None or self._failed is not None or self._is_enough:
            self._wake()

    @property
    def _is_refusal(self) -> bool:
        return self._has_head and self.status != OK

    def enough(self) -> None:
        """The sink has all that it wants; `pump` returns."""
        self._is_enough = True

    async def read_all(self, limit_bytes: int) -> bytes:
        """The whole rest of the body."""
        parts: list[bytes] = []
        size = 0
        while data := await self.read():
            parts.append(data)
            size += len(data)
            if size > limit_bytes:
                raise ExchangeFailed("malformed", f"the answer is larger than {limit_bytes} bytes")
        return b"".join(parts)

    def _next(self) -> asyncio.Future[None]:
        """What is done when there is something to look at."""
        if self._failed is not None:
            raise self._failed
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def fail(self, failure: ExchangeFailed) -> None:
        """Breaks the exchange from outside: whoever waits for it learns at once, and the replica sees a closed socket."""
        if self._is_complete or self._failed is not None:
            return
        self._failed = failure
        self.abort()
        self._wake()

    def abort(self) -> None:
        """Closes the socket now, so that the replica stops generating."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Ends the exchange: a connection that was read to its end goes back to the pool, any other is closed."""
        if self._is_complete:
            self._give_back()
        elif self._is_enough and self._failed is None and self._transport is not None:
            # Only the end mark of the body is missing; it need not hold anybody up.
            self._sink, self._is_enough = _ignore, False
            self._end_mark = self._loop.call_later(END_MARK_S, self._give_back)
        else:
            self.abort()

    def _give_back(self) -> None:
        self._end_mark = None
        # One that stopped reading would not hear its next answer.
        if self._is_complete and self._keeps_alive and self.is_reusable and not self._is_paused:
            self._sink = None
            self.idle_since = self._loop.time()
            self._release(self)
        else:
            self.abort()


class ConnectionPool:
    """Kept-alive connections to one replica. There is no bound on their number: permits bound the exchanges."""

    def __init__(self, origin: Origin, tls: ClientTls | None = None) -> None:
        self._origin = origin
        self._tls = (tls or ClientTls(NO_FILES)) if origin.tls else None
        self._idle: deque[Connection] = deque()

    def idle(self) -> Connection | None:
        """A connection that waits for another exchange, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.idle_s < IDLE_S:
                return connection
            connection.abort()
        return None

    async def connect(self, timeout_s: float, fresh: bool = False) -> Connection:
        """An idle connection, or a new one.

        Raises:
            ExchangeFailed: `refused` or `unreachable`.
        """
        if fresh:
            self.close()
        return self.idle() or await self._open(asyncio.get_running_loop(), timeout_s)

    async def _open(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> Connection:
        origin, tls = self._origin, self._tls
        if tls is not None:
            tls.refresh()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: cast(asyncio.Protocol, Connection(loop, self._release)),
                    origin.host,
                    origin.port,
                    ssl=None if tls is None else tls.context,
                )
        except ConnectionRefusedError as error:
            raise ExchangeFailed("refused", str(error)) from error
        except (OSError, TimeoutError) as error:
            raise ExchangeFailed("unreachable", str(error) or "no connection in time") from error
        return cast(Connection, connection)

    def _release(self, connection: Connection) -> None:
        self._idle.append(connection)

    def close(self) -> None:
        """Drops the idle connections."""
        while self._idle:
            self._idle.pop().abort()


def request_bytes(origin: Origin, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """A whole POST request. Header values must be free of control characters; `clean_header` sees to that."""
    more = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("latin-1")
    return b"%bcontent-length: %d\r\n%b\r\n%b" % (_head(origin, path), len(body), more, body)


@lru_cache(maxsize=4096)
def _head(origin: Origin, path: str) -> bytes:
    """What all requests to a path of a replica begin with."""
    lines = f"POST {origin.path}{path} HTTP/1.1\r\nhost: {origin.host_header}\r\ncontent-type: application/json\r\n"
    return lines.encode("latin-1")


def clean_header(value: str, limit: int = 256) -> str:
    """The printable ASCII of a header value, so that nothing a client sends can end a line."""
    if value.isascii() and value.isprintable() and len(value) <= limit:
        return value
    return "".join(c for c in value[:limit] if " " <= c <= "~")
