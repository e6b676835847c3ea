"""An upstream that says exactly the bytes it is told, in exactly these pieces."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
MODELS = b'{"object":"list","data":[{"id":"m","object":"model"}]}'


class Scripted:
    """Answers generation requests with `pieces`, one write each; the first ones with those of `first`."""

    def __init__(self) -> None:
        self.url = ""
        self.pieces: Sequence[bytes] = ()
        self.first: list[Sequence[bytes]] = []
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._serve(reader, writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0
        )
        await reader.readexactly(length)
        line = head.split(b"\r\n")[0]
        if b"completions" not in line:
            status = b"404 Not Found" if line.startswith(b"POST") else b"200 OK"
            body = MODELS if b"/v1/models" in line else b"{}"
            answer = b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b"
            writer.write(answer % (status, len(body), body))
            await writer.drain()
            return
        self.requests += 1
        pieces = self.first.pop(0) if self.first else self.pieces
        writer.write(HEAD)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if len(pieces) > 1:
                await asyncio.sleep(0.0003)


@asynccontextmanager
async def scripted() -> AsyncIterator[Scripted]:
    upstream = Scripted()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    upstream.url = f"http://{host}:{port}"
    async with server:
        yield upstream
