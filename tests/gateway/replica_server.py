"""A tiny HTTP server that says exactly the bytes it is told to, on a port of its own."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from struct import pack

Script = Callable[["Visit"], Awaitable[None]]


class Visit:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self.requests: list[bytes] = []
        self.ended = asyncio.Event()
        """Set when the script is over, because it ended or because the client closed the connection."""

    async def request(self) -> bytes:
        """The body of the next request.

        Raises:
            asyncio.IncompleteReadError: the client closed the connection.
        """
        head = await self._reader.readuntil(b"\r\n\r\n")
        lengths = (
            int(h.split(b":")[1]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length")
        )
        length = next(lengths, 0)
        body = await self._reader.readexactly(length)
        self.requests.append(head + body)
        return body

    @property
    def path(self) -> str:
        """Of the latest request."""
        return self.requests[-1].split()[1].decode()

    async def say(self, *pieces: bytes) -> None:
        """Sends each piece in a packet of its own, as far as one can."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0)

    async def gone(self) -> None:
        """Returns when the client has closed the connection."""
        while await self._reader.read(65536):
            pass

    def reset(self) -> None:
        """Sends RST, as a process does that is killed with unread bytes."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self.writer.transport.abort()


class ReplicaServer:
    """Runs a script for each connection; `visits` are those that came."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.visits: list[Visit] = []
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = Visit(reader, writer)
        self.visits.append(visit)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._script(visit)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            visit.ended.set()
            writer.close()

    async def stop(self) -> None:
        for visit in self.visits:
            visit.writer.transport.abort()
        await asyncio.wait_for(asyncio.gather(*self._tasks), 5)


@asynccontextmanager
async def replica_server(script: Script) -> AsyncIterator[ReplicaServer]:
    server = ReplicaServer(script)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield server
        await server.stop()


def answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole answer."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
