"""What stands between two servers in a test: TLS for a Redis that has none, and a network that fails.

Loss is what TCP makes of it: a segment that was lost comes when it is sent again, and what was behind it waits.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

RESENT_AFTER_S = 0.2
"""The least that Linux waits before it sends a segment again; it doubles each time."""
SEGMENTS = 256
"""Under way in one direction; whoever sends more waits."""


class Proxy:
    """Forwards connections to a port, as well as the network between them is said to be."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        self._forwarding = asyncio.Event()
        self._forwarding.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._delay_s, self._lost_share, self._rng = 0.0, 0.0, random.Random(0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Nothing gets through any more, and nobody is told: connections stay open, new ones are taken."""
        self._forwarding.clear()

    def delay(self, seconds: float) -> None:
        """Each way."""
        self._delay_s = seconds

    def lose(self, share: float) -> None:
        """Of the segments, 0 to 1, and of those that are sent again."""
        self._lost_share = share

    def mend(self) -> None:
        """What was held up goes on its way, as TCP would send it again."""
        self._delay_s = self._lost_share = 0.0
        self._forwarding.set()

    def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A new connection."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, here = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, here))
                group.create_task(self._pass(there, writer))
        except* OSError:
            pass  # One end is gone, and both are closed.
        finally:
            for end in (here, writer):
                end.close()
                with suppress(OSError):
                    await end.wait_closed()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(SEGMENTS)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take(reader, under_way))
            group.create_task(self._deliver(under_way, writer))
        # A socket that was closed under it can't be told the end any more.
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()
        else:
            writer.close()

    async def _take(
        self, reader: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        """Ends with an empty segment, as the stream does."""
        data = b"-"
        while data:
            data = b""
            with suppress(OSError):
                data = await reader.read(65536)
            await under_way.put((asyncio.get_running_loop().time() + self._way_s(), data))

    async def _deliver(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_at, data = await under_way.get()
            if (left_s := due_at - loop.time()) > 0:
                await asyncio.sleep(left_s)
            await self._forwarding.wait()
            if not data:
                return
            if writer.is_closing():
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()

    def _way_s(self) -> float:
        """How long one segment takes."""
        resent_s, way_s = RESENT_AFTER_S, self._delay_s
        while self._lost_share and self._rng.random() < self._lost_share:
            way_s += resent_s
            resent_s *= 2
        return way_s

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def proxy_to(port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """A proxy on a free port of 127.0.0.1, under TLS with a context."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.take, "127.0.0.1", 0, ssl=context)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.stop()
