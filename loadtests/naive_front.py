"""A proxy without any protection, to show what a drill finds where there is none.

It asks replicas in turn and never twice, looks the session up in the store and keeps it there before each request and
waits as long as that takes, and reads an answer to its end though its client has gone.
"""

import argparse
import asyncio
import signal
import sys
from itertools import cycle

import uvloop
from redis.asyncio import Redis
from redis.exceptions import RedisError

from loadtests.client_wire import CutError, connect, post
from loadtests.wire import Connection, Pending, Request


class _Relay:
    """One request under way."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_begun = False
        self._rest: list[bytes] = []

    def abandon(self) -> None:
        """Nobody is told that the client has gone."""

    async def run(self, url: str, request: Request) -> None:
        try:
            status = await self._relay(url, request)
        except (CutError, OSError):
            self._fail()
            return
        if self._is_begun:
            self._connection.end_stream()
        else:
            self._connection.reply(status, b"".join(self._rest))

    async def _relay(self, url: str, request: Request) -> int:
        upstream = await connect(url)
        try:
            asked = post(url, request.path, request.body)
            await upstream.exchange(asked, lambda data, _: self._take(upstream.status, data))
            return upstream.status
        finally:
            upstream.close()

    def _fail(self) -> None:
        if self._is_begun:
            self._connection.close()
        else:
            self._connection.reply(502, b'{"error":"bad gateway"}')

    def _take(self, status: int, data: bytes) -> None:
        if status != 200:
            self._rest.append(data)
            return
        if not self._is_begun:
            self._is_begun = True
            self._connection.begin_stream()
        self._connection.chunk(data)


class NaiveProxy:
    """Hands each request to the next replica."""

    def __init__(self, replicas: list[str], store: Redis | None) -> None:
        self._replicas = cycle(replicas)
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, request: Request, connection: Connection) -> Pending | None:
        if request.method != "POST":
            connection.reply(404, b'{"error":"not found"}')
            return None
        relay = _Relay(connection)
        task = asyncio.ensure_future(self._hand_on(request, connection, relay))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return relay

    async def _hand_on(self, request: Request, connection: Connection, relay: _Relay) -> None:
        if self._store is not None:
            session = request.headers.get("x-session-id", "none")
            try:
                await self._store.get(session)
                await self._store.set(session, "known", ex=60)
            except RedisError:
                connection.reply(500, b'{"error":"the store does not answer"}')
                return
        await relay.run(next(self._replicas), request)


async def serve_forever(replicas: list[str], store_url: str | None) -> None:
    """Serves until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    proxy = NaiveProxy(replicas, Redis.from_url(store_url) if store_url else None)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = await loop.create_server(lambda: Connection(proxy.serve), "127.0.0.1", 0)
    sys.stdout.write(f"ready http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await stopped.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtests.naive_front", description=__doc__)
    parser.add_argument("--store", help="the URL of a Redis")
    parser.add_argument("replicas", nargs="+")
    arguments = parser.parse_args()
    uvloop.run(serve_forever(arguments.replicas, arguments.store))


if __name__ == "__main__":
    main()
