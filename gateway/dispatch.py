"""One attempt on one replica: the request goes out, events come back, and what goes wrong gets its name here."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType

from gateway.breakers import Outcome
from gateway.errors import not_offered_json, rejection_json
from gateway.failure import ExchangeFailed
from gateway.http_client import OK, Connection, Sink, request_bytes
from gateway.leg import Leg
from gateway.replica import Replica, Stream
from gateway.request import Request
from gateway.sse import EventSplitter
from gateway.trace_context import TraceContext

CONNECT_TIMEOUT_S = 1.0
MAX_BODY_BYTES = 64 * 1024 * 1024
CLIENTS_MISTAKES = frozenset({400, 405, 406, 409, 411, 413, 414, 415, 422, 501})
NOT_THERE = frozenset({404, 405, 501})
"""What servers say of a path that their model has no use for."""
BACKPRESSURE = frozenset({429, 503})


class Rejected(Exception):  # noqa: N818
    """The replica found the client's request wrong: its answer is the client's answer."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.body = status, body


class PushedBack(ExchangeFailed):
    """The replica is full, not ill. `retry_after_s` is its own word, or None."""

    def __init__(self, status: int, retry_after_s: float | None) -> None:
        super().__init__("backpressure", f"HTTP {status}")
        self.retry_after_s = retry_after_s


class TokenIdsRefused(ExchangeFailed):
    """The replica does not know `return_token_ids`: the same again without it."""


@dataclass(frozen=True, slots=True)
class Patience:
    """When an exchange is given up: absolute monotonic seconds."""

    first_token_at: float
    """Without a first token until then, whoever else could be asked is."""
    latest_at: float
    """The same when nobody else could."""
    deadline: float
    has_others: Callable[[], bool]
    """Whether somebody else could be asked now."""


Take = Callable[[list[bytes]], Awaitable[None] | None]
"""Takes whole events, as they came."""


class Exchange:
    """A leg under way. Use as a context manager: leaving it early closes the socket, so that the replica stops."""

    def __init__(
        self,
        replica: Replica,
        leg: Leg,
        request: Request,
        patience: Patience,
        span: TraceContext | None = None,
    ) -> None:
        self._replica, self._leg, self._request, self._patience = replica, leg, request, patience
        self._traceparent = request.traceparent if span is None else span.header()
        self._made_at = perf_counter()
        self.dispatch_s = 0.0
        """From being made to the request's last byte being written."""
        self._splitter = EventSplitter()
        self._has_first_token = False
        self.sent_at = 0.0
        self.has_connection = False
        self.stream: Stream
        self._timer: asyncio.TimerHandle

    def __enter__(self) -> "Exchange":
        """Takes an idle connection, if there is one."""
        loop = asyncio.get_running_loop()
        self.sent_at = loop.time()
        connection = self._replica.pool.idle()
        if connection is not None:
            self._begin(connection, loop)
        return self

    async def connect(self) -> None:
        """Takes a new connection, where there was no idle one.

        Raises:
            ExchangeFailed: `refused` or `unreachable`.
        """
        timeout_s = min(CONNECT_TIMEOUT_S, max(0.05, self._patience.first_token_at - self.sent_at))
        connection = await self._replica.pool.connect(timeout_s)
        self._begin(connection, asyncio.get_running_loop())

    def _begin(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        self.has_connection = True
        self.stream = Stream(connection, self._patience.has_others)
        self._replica.streams.add(self.stream)
        first_at = min(self._patience.first_token_at, self._patience.deadline)
        self._timer = loop.call_at(first_at, self._on_timer, loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.has_connection:
            self._timer.cancel()
            self._replica.streams.discard(self.stream)
            self.stream.connection.finish()

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer serves all limits: most answers come long before any."""
        now, patience = loop.time() + 1e-3, self._patience
        if now >= patience.deadline:
            self.stream.connection.fail(ExchangeFailed("deadline"))
        elif self._has_first_token:
            self._timer = loop.call_at(patience.deadline, self._on_timer, loop)
        elif now >= patience.latest_at or patience.has_others():
            self.stream.connection.fail(ExchangeFailed("first_token_timeout"))
        else:
            self._timer = loop.call_at(min(patience.latest_at, patience.deadline), self._on_timer, loop)

    async def _send(self, sink: Sink | None) -> None:
        """Sends the request, and reads the status; with a sink the answer, too.

        Raises:
            Rejected, PushedBack, TokenIdsRefused, ExchangeFailed
        """
        request, connection = self._bytes(), self.stream.connection
        try:
            connection.send(request)
            self.dispatch_s = perf_counter() - self._made_at
            await (connection.head() if sink is None else connection.pump(sink))
        except ExchangeFailed as failed:
            # A kept-alive connection may have been closed by the replica just before it was used.
            is_stale = connection.exchanges > 1 and connection.is_untouched
            if not is_stale or failed.failure not in ("cut", "reset"):
                raise
            connection = await self._replica.pool.connect(CONNECT_TIMEOUT_S, fresh=True)
            self.stream.connection = connection
            connection.send(request)
            await (connection.head() if sink is None else connection.pump(sink))
        if connection.status != OK:
            await self._refused(connection)

    def _bytes(self) -> bytes:
        request, replica = self._request, self._replica
        headers = {"x-request-id": request.request_id}
        if self._traceparent:
            headers["traceparent"] = self._traceparent
        if replica.place.api_key:
            headers["authorization"] = f"Bearer {replica.place.api_key}"
        return request_bytes(replica.origin, self._leg.path, self._leg.encoded(), headers)

    async def _refused(self, connection: Connection) -> None:
        status, headers = connection.status, connection.headers
        body = await connection.read_all(MAX_BODY_BYTES)
        if status in BACKPRESSURE:
            raise PushedBack(status, _seconds(headers.get("retry-after")))
        if status in (400, 422) and self._leg.asked_ids and b"return_token_ids" in body:
            raise TokenIdsRefused("token_ids_refused")
        if self._request.kind == "embedding" and status in NOT_THERE:
            raise Rejected(status, not_offered_json(self._request.model, "embeddings"))
        if status in CLIENTS_MISTAKES:
            raise Rejected(status, rejection_json(body))
        raise ExchangeFailed.of_status(status, body[:300].decode("utf-8", "replace"))

    def pump(self, take: "Take") -> Coroutine[object, object, None]:
        """Sends the request, and gives `take` whole events, in the step in which they are read, until it has had the last.

        Raises:
            Rejected, PushedBack, TokenIdsRefused, ExchangeFailed
        """
        splitter = self._splitter

        def sink(data: bytes) -> Awaitable[None] | None:
            try:
                events = splitter.events(data)
            except ValueError as error:
                raise ExchangeFailed("malformed", str(error)) from error
            return take(events) if events else None

        return self._send(sink)

    def enough(self) -> None:
        """The answer is whole."""
        self.stream.connection.enough()

    def first_token(self) -> None:
        """The answer has begun: from now on silence is measured between tokens."""
        self._has_first_token = True

    async def read_whole(self) -> bytes:
        """Sends the request; the body of an answer that is not streamed.

        Raises:
            Rejected, PushedBack, TokenIdsRefused, ExchangeFailed
        """
        await self._send(None)
        return await self.stream.connection.read_all(MAX_BODY_BYTES)


def outcome_of(failure: ExchangeFailed) -> Outcome:
    """What a failure says about the replica."""
    if isinstance(failure, PushedBack):
        return Outcome.BACKPRESSURE
    if failure.failure in ("deadline", "token_ids_refused", "lost_race", "context", "budget"):
        return Outcome.NEUTRAL
    return Outcome.SLOW if failure.failure in ("first_token_timeout", "slow") else Outcome.FAILURE


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After in seconds; a date is taken for no answer."""
    try:
        return max(0.0, min(float(retry_after or ""), 3600.0))
    except ValueError:
        return None
