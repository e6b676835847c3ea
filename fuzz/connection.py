"""A client's connection, byte for byte: what goes out is whole responses, no 5xx, and the same ones however it was cut."""

import asyncio
from collections.abc import Iterable
from functools import cache
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.server import ServerState

from fuzz.pieces import cut, seeded
from gateway.hot_http import HotHttpProtocol
from gateway.http import HttpApi, Receive, Scope, Send
from gateway.reply import Reply, Served
from gateway.request import Request


class _Echo:
    """Answers every request at once."""

    async def answer(self, request: Request, reply: Reply) -> None:
        served = Served("primary", "r", "", request.request_id)
        if request.stream:
            if (blocked := reply.push(served, b"data: {}\n\n")) is not None:
                await blocked
            await reply.end()
        else:
            await reply.whole(served, b"{}")


async def _surface(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    length = (b"content-length", b"2")
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": b"{}"})


class _Wire:
    """The transport of a connection: keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_open = True

    def write(self, data: bytes) -> None:
        if self.is_open:
            self.written += data

    def close(self) -> None:
        self.is_open = False

    abort = close

    def is_closing(self) -> bool:
        return not self.is_open

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return None

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class _Responses:
    """Reads back what went out: raises httptools' error when it is no row of responses."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self._parser = httptools.HttpResponseParser(self)

    def on_headers_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())

    def read(self, data: bytes) -> list[int]:
        if data:
            self._parser.feed_data(data)
        return self.statuses


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all inputs of a process."""
    return asyncio.new_event_loop()


@cache
def _config() -> uvicorn.Config:
    api = HttpApi(_Echo(), _surface, lambda: 65536)
    return uvicorn.Config(
        api, interface="asgi3", loop="none", http=HotHttpProtocol, ws="none", lifespan="off", log_config=None
    )


def connection(data: bytes) -> None:
    """Requests in a row; each is answered or refused, in order."""
    seed, rest = seeded(data)
    if b"HEAD " in rest:
        # What tells its length and has no body can't be read back without knowing that it was asked for so.
        return
    at_once = _loop().run_until_complete(_spoken([rest]))
    in_pieces = _loop().run_until_complete(_spoken(cut(rest, seed)))
    # Bytes that are no request end the connection, and with it whatever is not answered yet.
    shorter = min(len(at_once), len(in_pieces))
    if at_once[:shorter] != in_pieces[:shorter] or max(at_once + in_pieces, default=200) >= 500:
        raise AssertionError(f"{at_once} at once, {in_pieces} in pieces")


async def _spoken(pieces: Iterable[bytes]) -> list[int]:
    """The statuses of what was said to these bytes."""
    wire = _Wire()
    protocol = HotHttpProtocol(_config(), ServerState(), {}, _loop())
    protocol.connection_made(cast(asyncio.Transport, wire))
    for piece in pieces:
        if wire.is_open:
            protocol.data_received(piece)
        await _settled(protocol)
    protocol.connection_lost(None)
    await _settled(protocol)
    return _Responses().read(wire.written)


async def _settled(protocol: HotHttpProtocol) -> None:
    for _ in range(12):
        await asyncio.sleep(0)
        if not any(not task.done() for task in protocol.tasks):
            return
