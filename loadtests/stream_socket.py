"""A blocking HTTP/1.1 client for greenlets: one request on a connection of its own, its answer read as it comes.

Under Locust, sockets are gevent's, so that blocking here blocks one greenlet. Nothing between the socket and the
parser costs the generator time that would show in what it measures.
"""

import socket
import ssl
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httptools

from loadtests.client import KEPT_HEADERS, EventReader, Question, Record
from loadtests.client_wire import CutError, post
from loadtests.stamps import StampedReader

READ_BYTES = 65536
SAMPLED = 10
"""One read in so many says how late it was: to say it of each costs as much as the read."""
Receive = Callable[[bytes, float], None]
Pause = Callable[[], None]


class _Response:
    """What the parser finds."""

    def __init__(self, receive: Receive) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._receive = receive
        self._now = 0.0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_whole = False

    def feed(self, data: bytes, now: float) -> None:
        self._now = now
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise CutError(f"not HTTP: {error}") from error

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._receive(body, self._now)

    def on_message_complete(self) -> None:
        self.is_whole = True


class Exchange:
    """One request to its end. `pause` comes before each read: a slow reader takes its time there."""

    def __init__(self, url: str, receive: Receive, timeout_s: float, pause: Pause | None = None) -> None:
        self._url = url
        self._response = _Response(receive)
        self._timeout_s = timeout_s
        self._pause = pause
        self.is_left = False
        self.sent_at = 0.0
        self.read_lags_s: list[float] = []

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> dict[str, str]:
        return self._response.headers

    def leave(self) -> None:
        """Hang up before the next read."""
        self.is_left = True

    def run(self, request: bytes) -> None:
        """Returns when the answer is whole or was left; raises CutError, TimeoutError or another OSError."""
        with _connected(self._url, self._timeout_s, is_slow=self._pause is not None) as connection:
            reader = StampedReader(connection)
            connection.sendall(request)
            self.sent_at = time.monotonic()
            number = 0
            while not (self._response.is_whole or self.is_left):
                if self._pause is not None:
                    self._pause()
                data, arrived_at, lag_s = reader.read(READ_BYTES)
                if not data:
                    raise CutError("closed")
                if reader.is_stamped and number % SAMPLED == 0:
                    self.read_lags_s.append(lag_s)
                number += 1
                self._response.feed(data, arrived_at)


def _connected(url: str, timeout_s: float, *, is_slow: bool) -> socket.socket:
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    address = (parts.hostname or "127.0.0.1", parts.port or (443 if is_secure else 80))
    connection = socket.create_connection(address, timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if is_slow:
        # Small enough that what is not read stays with the server.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    if is_secure:
        return ssl.create_default_context().wrap_socket(connection, server_hostname=parts.hostname)
    return connection


def ask(
    url: str,
    model: str,
    question: Question,
    due_at: float | None,
    timeout_s: float = 60.0,
    pause: Pause | None = None,
) -> Record:
    """One streamed chat, due when it was sent if at no other time. Never raises for what the server does.

    Times are of `time.monotonic`.
    """
    begun_at = time.monotonic()
    record = Record(begun_at if due_at is None else due_at, question, started_at=begun_at)
    reader = EventReader(record, lambda: exchange.leave())
    exchange = Exchange(url, reader.receive, timeout_s, pause)
    record.failure = _failure(
        exchange, post(url, "/v1/chat/completions", question.body(model), question.headers)
    )
    record.ended_at = time.monotonic()
    record.read_lags_s = exchange.read_lags_s
    if due_at is None and exchange.sent_at:
        record.due_at = exchange.sent_at
    record.status = exchange.status
    record.headers = {name: exchange.headers[name] for name in KEPT_HEADERS if name in exchange.headers}
    return record


def _failure(exchange: Exchange, request: bytes) -> str | None:
    """Why an exchange ended early, in the words of `Record.failure`."""
    try:
        exchange.run(request)
    except TimeoutError:
        return "timeout"
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "cut"
    return "left" if exchange.is_left else None


def complete(
    url: str, body: bytes, headers: dict[str, str], timeout_s: float = 60.0
) -> tuple[int, dict[str, str], bytes]:
    """One completion that is not streamed: status (0 where there was none), headers, body."""
    parts: list[bytes] = []
    exchange = Exchange(url, lambda data, _: parts.append(data), timeout_s)
    failure = _failure(exchange, post(url, "/v1/completions", body, headers))
    return (0 if failure else exchange.status), exchange.headers, b"".join(parts)
