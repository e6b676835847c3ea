"""What stands between two servers in a test: TLS for a Redis that has none, and a network that fails."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Forwards connections to a port, until it is told to drop all they say."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self._forwarding = asyncio.Event()
        self._forwarding.set()
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Nothing gets through any more, and nobody is told: connections stay open, new ones are taken."""
        self._forwarding.clear()

    def mend(self) -> None:
        """What was held up goes on its way, as TCP would send it again."""
        self._forwarding.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            there, here = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pass(reader, here), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await reader.read(65536):
                    await self._forwarding.wait()
                    writer.write(data)
        finally:
            writer.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxy_to(port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """A proxy on a free port of 127.0.0.1, under TLS with a context."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=context)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.stop()
