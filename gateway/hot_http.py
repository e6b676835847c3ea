"""uvicorn's HTTP protocol with a short cut: requests for an answer skip ASGI, all others take uvicorn's own way.

ASGI costs a scope, an event, a second task that watches for the client to leave, and two dictionaries a chunk. Here a
request is parsed when its last byte is in, runs as one task, writes to the transport itself, and is cancelled by the
connection's end. Pipelining and draining stay uvicorn's.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl

from gateway.errors import ClientError, error_json, shed_headers, shed_json, shed_status
from gateway.guarded_http import STATUS_LINES, GuardedHttpProtocol
from gateway.http import EVENT_STREAM, JSON, KINDS, Header, HttpApi, disclosed
from gateway.policy.decision import Shed
from gateway.reply import Served
from gateway.request import Kind, name_request, parse_request
from gateway.sse import frame

log = logging.getLogger("graceway.http")

LAST_CHUNK = b"0\r\n\r\n"
CHUNKED: Header = (b"transfer-encoding", b"chunked")


class HotHttpProtocol(GuardedHttpProtocol):
    """One client connection."""

    def begin(self) -> None:
        kind = KINDS.get(self.url.decode("latin-1")) if self.parser.get_method() == b"POST" else None
        is_free = self.cycle is None or self.cycle.response_complete
        if kind is None or not is_free or not self._is_plain(self._api):
            super().begin()
        else:
            self.cycle = HotCycle(self, self._api, kind)  # type: ignore[assignment]

    def _is_plain(self, api: HttpApi) -> bool:
        """Whether the whole body is announced, small enough, and sent without being asked for."""
        if self.expect_100_continue or self.parser.should_upgrade():
            return False
        length = next((v for n, v in self.headers if n == b"content-length"), b"")
        return length.isdigit() and int(length) <= api.max_body_bytes()


class HotCycle:
    """One request and its answer, in the place of uvicorn's own cycle: it has the attributes that the protocol uses."""

    def __init__(self, protocol: HotHttpProtocol, api: HttpApi, kind: Kind) -> None:
        self._protocol, self._api, self._kind = protocol, api, kind
        self.transport: asyncio.Transport = protocol.transport
        self.flow: FlowControl = protocol.flow
        self._is_chunked = protocol.parser.get_http_version() != "1.0"
        """A client of before chunks knows the end of a stream by the connection's."""
        self.keep_alive = self._is_chunked and protocol.parser.should_keep_alive()
        self.default_headers = protocol.server_state.default_headers
        self.headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in protocol.headers}
        self.body = bytearray()
        self.more_body = True
        self.disconnected = False
        self.response_complete = False
        self.response_started = False
        self._has_begun = False
        self._task: asyncio.Task[None] | None = None

    @property
    def message_event(self) -> "HotCycle":
        """What the protocol tells what comes: not kept, as it would keep the cycle from ending with its last use."""
        return self

    def set(self) -> None:
        """The protocol's signal: more of the body, its end, or the connection's end."""
        tasks = self._protocol.tasks
        if self.disconnected:
            task, self._task = self._task, None
            if task is not None:
                # One that has not begun yet never comes to its end.
                task.add_done_callback(tasks.discard)
                task.cancel("the client has gone")
        elif self.more_body:
            # uvicorn stops reading at 64 KiB, until somebody takes them; here the whole body is waited for.
            self.flow.resume_reading()
        elif not self._has_begun:
            self._has_begun = True
            running = self._task = self._protocol.loop.create_task(self._run())
            tasks.add(running)

    async def _run(self) -> None:
        reply, request_id = HotReply(self), name_request(self.headers)
        try:
            await self._api.gateway.answer(parse_request(self._kind, bytes(self.body), self.headers), reply)
        except ClientError as error:
            reply.write_whole(error.status, [(b"x-request-id", request_id.encode())], error.to_json())
        except asyncio.CancelledError:
            if not self.disconnected:
                raise
        except Exception:
            log.exception("a request failed in a way that nobody foresaw")
            self._fail(reply, request_id)
        finally:
            self._protocol.tasks.discard(self._task)
            self._task = None

    def _fail(self, reply: "HotReply", request_id: str) -> None:
        error = error_json("the gateway failed", "internal_error", "internal_error")
        if not self.response_started:
            reply.write_whole(500, [(b"x-request-id", request_id.encode())], error)
        elif not self.response_complete:
            self.transport.write(self.framed(frame(error)))
            self.end()

    def head(self, status: int, headers: list[Header]) -> bytes:
        """A status line and headers."""
        self.response_started = True
        lines = [STATUS_LINES[status]]
        lines += [b"%b: %b\r\n" % header for header in (*self.default_headers, *headers)]
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        return b"".join(lines)

    def streaming_head(self, served: Served) -> bytes:
        """The head of a stream."""
        headers = [*EVENT_STREAM, *disclosed(served)]
        return self.head(200, [*headers, CHUNKED] if self._is_chunked else headers)

    def framed(self, data: bytes) -> bytes:
        """A part of a stream."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data

    def end(self) -> None:
        """The stream has ended."""
        if self._is_chunked:
            self.transport.write(LAST_CHUNK)
        self.complete()

    def complete(self) -> None:
        """The answer is out; the connection is free for the next request."""
        self.response_complete = True
        if not self.keep_alive:
            self.transport.close()
        self._protocol.on_response_complete()


class HotReply:
    """A `Reply` that writes to the transport."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: HotCycle) -> None:
        self._cycle = cycle

    def push(self, served: Served, frames: bytes) -> Awaitable[None] | None:
        cycle = self._cycle
        chunk = cycle.framed(frames)
        if not cycle.response_started:
            chunk = cycle.streaming_head(served) + chunk
        cycle.transport.write(chunk)
        return cycle.flow.drain() if cycle.flow.write_paused else None

    async def end(self) -> None:
        self._cycle.end()

    async def whole(self, served: Served, body: bytes, status: int = 200) -> None:
        self.write_whole(status, disclosed(served), body)

    async def refuse(self, shed: Shed, request_id: str) -> None:
        headers: dict[str, Any] = {**shed_headers(shed), "x-request-id": request_id}
        encoded = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
        self.write_whole(shed_status(shed), encoded, shed_json(shed))

    def write_whole(self, status: int, headers: list[Header], body: bytes) -> None:
        """A whole response."""
        length = (b"content-length", str(len(body)).encode())
        cycle = self._cycle
        cycle.transport.write(cycle.head(status, [JSON, length, *headers]) + body)
        cycle.complete()
