"""Which Redis server has a key: the only one, the master that Sentinels name, or the node that has its slot.

Addresses are looked up beside the calls and never within one: a call goes to where its key was last known to be, fails
or is answered within its own limit, and a failure has the addresses looked up anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import RedisError

from state_store.protocol import StateStoreUnavailable
from state_store.redis_url import RedisUrl, Server

LOOK_UP_WITHIN_S = 0.5
"""At least; as long as a call may take, where that is more."""
LOOK_AGAIN_S = 1.0
"""How old what Sentinels said may be while all goes well."""
LOOK_IN_DOUBT_S = 0.1
"""How old it may be where a server's replicas do not follow it; longer where none of them runs would cost more."""
MAX_CONNECTIONS = 16


class Servers(Protocol):
    """The servers of one store."""

    def place_of(self, key: str) -> str:
        """A name for whatever fails together with this key's server."""
        ...

    async def client(self, key: str) -> Any:
        """A client of the server that has the key. Raises StateStoreUnavailable when none is known to."""
        ...

    def client_at(self, server: Server) -> Any:
        """A client of the server to which a node sent us."""
        ...

    def failed(self, key: str, moved_to: Server | None = None) -> None:
        """A call for this key failed, or was told where the key is now."""
        ...

    def doubted(self) -> None:
        """A server answers, but its replicas do not follow it: another one may be the master."""
        ...

    async def close(self) -> None: ...


def servers_of(url: RedisUrl, timeout_s: float) -> Servers:
    """The servers behind a URL, each call to which may take so long; opens no connection yet."""
    within_s = max(LOOK_UP_WITHIN_S, timeout_s)
    if url.kind == "sentinel":
        return BehindSentinels(url, within_s)
    return InCluster(url, within_s) if url.kind == "cluster" else OneServer(url)


def open_client(server: Server, login: Mapping[str, Any]) -> Any:
    """A client of one server, which connects when it is used and tries everything once."""
    settings = {name: value for name, value in login.items() if name != "ssl"}
    kind: type[Any] = SSLConnection if login.get("ssl") else Connection
    where: dict[str, Any] = {"host": server.host, "port": server.port}
    if server.path:
        kind, where = UnixDomainSocketConnection, {"path": server.path}
    pool = BlockingConnectionPool(
        connection_class=kind,
        max_connections=MAX_CONNECTIONS,
        # Every limit is the caller's, which knows how busy the loop is: none of these counts by the clock.
        timeout=None,
        socket_timeout=None,
        socket_connect_timeout=None,
        # A call is tried once: whether to try again is the guard's decision.
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        # Saves two commands on every new connection.
        driver_info=None,
        **where,
        **settings,
    )
    client = Redis(connection_pool=pool)
    # Answers as the server gives them: what a client makes of some differs by version.
    client.response_callbacks.clear()
    return client


async def close_client(client: Any) -> None:
    """Ends its connections, those in use too."""
    with suppress(RedisError, OSError):
        await client.aclose()
        await client.connection_pool.disconnect()


class OneServer:
    """A server whose address never changes."""

    def __init__(self, url: RedisUrl) -> None:
        self._client = open_client(url.servers[0], url.login)

    def place_of(self, key: str) -> str:
        return ""

    async def client(self, key: str) -> Any:
        return self._client

    def client_at(self, server: Server) -> Any:
        return self._client

    def failed(self, key: str, moved_to: Server | None = None) -> None:
        return None

    def doubted(self) -> None:
        return None

    async def close(self) -> None:
        await close_client(self._client)


class _Clients:
    """One client for each server, and a lookup of addresses that runs once at a time and takes so long at most."""

    def __init__(
        self, login: Mapping[str, Any], look_up: Callable[[], Awaitable[None]], within_s: float
    ) -> None:
        self._login, self._look_up, self._within_s = login, look_up, within_s
        self._clients: dict[Server, Any] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None
        self._looked_at = 0.0

    def at(self, server: Server) -> Any:
        if server not in self._clients:
            self._clients[server] = open_client(server, self._login)
        return self._clients[server]

    def keep(self, servers: Iterable[Server]) -> None:
        """Closes the clients of all others."""
        for server in self._clients.keys() - set(servers):
            task = asyncio.get_running_loop().create_task(close_client(self._clients.pop(server)))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def look(self) -> None:
        """Starts a lookup unless one is under way."""
        loop = asyncio.get_running_loop()
        if self._looking is None or self._looking.done():
            self._looked_at = loop.time()
            self._news = loop.create_future()
            self._looking = loop.create_task(self._look(), name="redis addresses")

    def look_if_older(self, age_s: float) -> None:
        """Starts a lookup where the last one began longer ago than that."""
        if asyncio.get_running_loop().time() - self._looked_at > age_s:
            self.look()

    async def news(self) -> None:
        """Returns when a lookup has found something, or has ended without."""
        self.look()
        assert self._news is not None
        await asyncio.shield(self._news)

    def tell(self) -> None:
        """Something has been found."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _look(self) -> None:
        try:
            with suppress(TimeoutError, RedisError, OSError):
                async with asyncio.timeout(self._within_s):
                    await self._look_up()
        finally:
            self.tell()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            # What a cancelled lookup had just opened is closed in the loop's next step.
            await asyncio.sleep(0)
        self.keep(())
        await asyncio.gather(*self._closing)


class BehindSentinels:
    """The master that most recent agreement of the Sentinels names."""

    def __init__(self, url: RedisUrl, within_s: float) -> None:
        self._wait_s = within_s / 2
        self._name = url.master
        self._sentinels = [open_client(server, url.sentinel_login) for server in url.servers]
        self._clients = _Clients(url.login, self._look_up, within_s)
        self._master: Server | None = None

    def place_of(self, key: str) -> str:
        return ""

    async def client(self, key: str) -> Any:
        if self._master is None:
            await self._clients.news()
        else:
            self._clients.look_if_older(LOOK_AGAIN_S)
        if self._master is None:
            raise StateStoreUnavailable(f"no Sentinel knows a master called {self._name}")
        return self._clients.at(self._master)

    def client_at(self, server: Server) -> Any:
        return self._clients.at(server)

    def failed(self, key: str, moved_to: Server | None = None) -> None:
        self._clients.look()

    def doubted(self) -> None:
        self._clients.look_if_older(LOOK_IN_DOUBT_S)

    async def _look_up(self) -> None:
        """Asks all at once, as the first may be frozen; the newest agreement counts, as one may be cut off from it."""
        asked = [asyncio.ensure_future(self._ask(sentinel)) for sentinel in self._sentinels]
        try:
            await asyncio.wait(asked, timeout=self._wait_s)
            told = [answer for task in asked if task.done() and (answer := task.result()) is not None]
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if told:
            _, self._master = max(told)
            self._clients.keep([self._master])

    async def _ask(self, sentinel: Any) -> tuple[int, Server] | None:
        try:
            said = await sentinel.execute_command("SENTINEL MASTER", self._name)
        except (RedisError, OSError):
            return None
        words = [word.decode() for word in said]
        told = dict(zip(words[::2], words[1::2], strict=True))
        return int(told["config-epoch"]), Server(told["ip"], int(told["port"]))

    async def close(self) -> None:
        await self._clients.close()
        for sentinel in self._sentinels:
            await close_client(sentinel)


class InCluster:
    """The node that serves a key's slot, as the nodes themselves say."""

    def __init__(self, url: RedisUrl, within_s: float) -> None:
        self._seeds = url.servers
        self._clients = _Clients(url.login, self._look_up, within_s)
        self._slots: dict[int, Server] = {}

    def place_of(self, key: str) -> str:
        return str(self._slots.get(key_slot(key.encode()), ""))

    async def client(self, key: str) -> Any:
        slot = key_slot(key.encode())
        if slot not in self._slots:
            await self._clients.news()
        if slot not in self._slots:
            raise StateStoreUnavailable("no node of the Cluster is known to serve this key")
        return self._clients.at(self._slots[slot])

    def client_at(self, server: Server) -> Any:
        return self._clients.at(server)

    def failed(self, key: str, moved_to: Server | None = None) -> None:
        if moved_to is not None:
            self._slots[key_slot(key.encode())] = moved_to
        self._clients.look()

    def doubted(self) -> None:
        self._clients.look_if_older(LOOK_IN_DOUBT_S)

    async def _look_up(self) -> None:
        """Asks all nodes that are known at once; the first that knows of every slot is believed."""
        known = sorted({*self._seeds, *self._slots.values()})
        is_first = True
        for answer in asyncio.as_completed([self._ask(server) for server in known]):
            if (slots := await answer) and is_first:
                is_first, self._slots = False, slots
                self._clients.keep({*slots.values(), *known})
                self._clients.tell()

    async def _ask(self, server: Server) -> dict[int, Server]:
        try:
            return _slots_of(await self._clients.at(server).execute_command("CLUSTER SLOTS"), server)
        except (RedisError, OSError):
            return {}

    async def close(self) -> None:
        await self._clients.close()


def _slots_of(ranges: Any, asked: Server) -> dict[int, Server]:
    """The server of each slot; nothing from a node that does not know of all."""
    found: dict[int, Server] = {}
    for first, last, primary, *_ in ranges:
        # A node that does not know its own address leaves it out.
        server = Server(primary[0].decode() or asked.host, int(primary[1]))
        found.update(dict.fromkeys(range(first, last + 1), server))
    return found if len(found) == REDIS_CLUSTER_HASH_SLOTS else {}
