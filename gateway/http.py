"""The HTTP surface: raw ASGI where requests run, FastAPI for the rest.

The hot routes skip the framework: routing, validation and response objects cost as much as the rest of a request.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Protocol

from gateway.connections import Connections
from gateway.errors import ClientError, TooLarge, shed_headers, shed_json, shed_status
from gateway.policy.decision import Shed
from gateway.reply import Reply, Served
from gateway.request import PATHS, Kind, Request, name_request, parse_request
from gateway.specs import LimitsSpec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

KINDS: dict[str, Kind] = {path: kind for kind, path in PATHS.items()}
Header = tuple[bytes, bytes]
JSON: Header = (b"content-type", b"application/json")
EVENT_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
)
DISCARD_BYTES = 64 * 1024 * 1024
DISCARD_S = 10.0
"""How much of a body that is too large is read and thrown away, and for how long."""


class ClientGone(Exception):  # noqa: N818
    """The client hung up before its request was whole."""


class Answers(Protocol):
    """Whoever answers a parsed request."""

    async def answer(self, request: Request, reply: Reply) -> None: ...


class HttpApi:
    """The ASGI application of one gateway."""

    def __init__(
        self,
        gateway: Answers,
        surface: Asgi,
        max_body_bytes: Callable[[], int],
        limits: Callable[[], LimitsSpec] = LimitsSpec,
    ) -> None:
        self.gateway, self._surface, self.max_body_bytes = gateway, surface, max_body_bytes
        self.limits = limits
        self.connections = Connections(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = KINDS.get(scope.get("path", "")) if scope["type"] == "http" else None
        if kind is None or scope["method"] != "POST":
            # Whatever can be got has a head; the server keeps the body back.
            is_head = scope["type"] == "http" and scope["method"] == "HEAD"
            return await self._surface({**scope, "method": "GET"} if is_head else scope, receive, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        reply, request_id = HttpReply(send), name_request(headers)
        try:
            body = await read_body(receive, headers.get("content-length"), self.max_body_bytes())
            await self._run(parse_request(kind, body, headers), receive, reply)
        except ClientError as error:
            if isinstance(error, TooLarge) and "expect" not in headers:
                await discard_rest(receive)
            await reply.error(error, request_id)
        except ClientGone:
            return None

    async def _run(self, request: Request, receive: Receive, reply: "HttpReply") -> None:
        """Answers the request, unless its client leaves: then everything that runs for it is cancelled."""
        task = asyncio.current_task()
        assert task is not None
        watch = asyncio.get_running_loop().create_task(_cancel_when_gone(receive, task))
        try:
            await self.gateway.answer(request, reply)
        except asyncio.CancelledError:
            if not watch.done() or task.uncancel() > 0:
                raise
        finally:
            watch.cancel()


async def _cancel_when_gone(receive: Receive, task: asyncio.Task[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    task.cancel("the client has gone")


async def read_body(receive: Receive, content_length: str | None, limit_bytes: int) -> bytes:
    """The whole request body.

    Raises:
        TooLarge, ClientGone
    """
    if content_length is not None and content_length.isdigit() and int(content_length) > limit_bytes:
        raise TooLarge(limit_bytes)
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise TooLarge(limit_bytes)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def discard_rest(receive: Receive) -> None:
    """Reads on, within bounds: a client that writes its whole body before it looks must see the answer, not a reset."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            while size <= DISCARD_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return


class HttpReply:
    """A `Reply` over ASGI."""

    __slots__ = ("_has_begun", "_send")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._has_begun = False

    def push(self, served: Served, frames: bytes) -> Awaitable[None]:
        return self._push(served, frames)

    async def _push(self, served: Served, frames: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            headers = [*EVENT_STREAM, *disclosed(served)]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self, served: Served, body: bytes, status: int = 200) -> None:
        await self._whole(status, disclosed(served), body)

    async def refuse(self, shed: Shed, request_id: str) -> None:
        headers = {**shed_headers(shed), "x-request-id": request_id}
        encoded = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
        await self._whole(shed_status(shed), encoded, shed_json(shed))

    async def error(self, error: ClientError, request_id: str) -> None:
        """The caller's own mistake."""
        headers = [(b"x-request-id", request_id.encode())]
        if isinstance(error, TooLarge):
            # What may be left of the body is not read.
            headers.append((b"connection", b"close"))
        await self._whole(error.status, headers, error.to_json())

    async def _whole(self, status: int, headers: list[Header], body: bytes) -> None:
        length = (b"content-length", str(len(body)).encode())
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [JSON, length, *headers]}
        )
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def disclosed(served: Served) -> list[Header]:
    headers = [
        (b"x-served-tier", served.tier.encode()),
        (b"x-served-replica", (served.replica or "gateway").encode("latin-1")),
        (b"x-request-id", served.request_id.encode("latin-1")),
    ]
    if served.degraded:
        headers.append((b"x-degraded", served.degraded.encode("latin-1")))
    if served.given_up:
        headers.append((b"x-given-up", served.given_up.encode("latin-1")))
    if served.kv_durability:
        headers.append((b"x-kv-durability", served.kv_durability.encode()))
    if served.traceparent:
        headers.append((b"traceparent", served.traceparent.encode("latin-1")))
    if served.age_s is not None:
        headers.append((b"age", str(int(served.age_s)).encode()))
    headers += [(name.encode(), value.encode()) for name, value in served.turn.told()]
    return headers
