"""Which server has a key: the only one, the master that Sentinels name now, or the Cluster's node that has its slot."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from redis.crc import key_slot

from state_store.kv.node import BlocksUnavailable, Node, Told, tell_nobody
from state_store.kv.resp import Connection, ConnectionFailed, Reply
from state_store.redis_url import RedisUrl, Server

Now = Callable[[], float]
_LOOK_AGAIN_S = 1.0
"""A Cluster's slots are not looked up more often than this, whatever goes wrong."""


class Nodes(Protocol):
    """The servers of one store."""

    def of(self, key: bytes) -> Node:
        """The one that has the key. Raises BlocksUnavailable when none is known to."""
        ...

    def moved(self) -> None:
        """One of them said that it does not have what was thought to be there."""
        ...

    @property
    def is_available(self) -> bool: ...

    def close(self) -> None: ...


def nodes_of(url: RedisUrl, timeout_s: float, now: Now = time.monotonic, told: Told = tell_nobody) -> Nodes:
    """The servers behind a URL; opens no connection yet. New connections open within `timeout_s`."""
    if url.kind == "cluster":
        return InCluster(url, timeout_s, now, told)
    if url.kind == "sentinel":
        return OneNode(Node(partial(_connect_to_master, url), timeout_s, now, told))
    return OneNode(Node(partial(Connection, url.servers[0], url.login), timeout_s, now, told))


class OneNode:
    """All keys are on one server."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def of(self, key: bytes) -> Node:
        return self._node

    def moved(self) -> None:
        """There is no other one."""

    @property
    def is_available(self) -> bool:
        return self._node.is_available

    def close(self) -> None:
        self._node.close()


class InCluster:
    """Keys are where the Cluster says that their slots are; it is asked at first, and when a node denies a key."""

    def __init__(self, url: RedisUrl, timeout_s: float, now: Now, told: Told) -> None:
        self._url, self._timeout_s, self._now, self._told = url, timeout_s, now, told
        self._lock = threading.Lock()
        self._nodes: dict[Server, Node] = {}
        self._slots: list[tuple[range, Server]] = []
        self._looked_at: float | None = None
        self._is_stale = True

    def of(self, key: bytes) -> Node:
        slot = key_slot(key)
        with self._lock:
            self._look()
            server = next((server for slots, server in self._slots if slot in slots), None)
            if server is None:
                raise BlocksUnavailable(f"no node of the Cluster has slot {slot}")
            return self._node(server)

    def moved(self) -> None:
        self._is_stale = True

    @property
    def is_available(self) -> bool:
        return all(node.is_available for node in self._nodes.values())

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()

    def _node(self, server: Server) -> Node:
        if server not in self._nodes:
            connect = partial(Connection, server, self._url.login)
            self._nodes[server] = Node(connect, self._timeout_s, self._now, self._told)
        return self._nodes[server]

    def _look(self) -> None:
        """Has the Cluster say where its slots are, if that may have changed."""
        is_due = self._looked_at is None or self._now() - self._looked_at > _LOOK_AGAIN_S
        if not is_due or not (self._is_stale or not self.is_available):
            return
        self._looked_at = self._now()
        for server in dict.fromkeys((*self._nodes, *self._url.servers)):
            try:
                with Connection(server, self._url.login, self._timeout_s) as connection:
                    slots = list(_slots(connection.ask([[b"CLUSTER", b"SLOTS"]])[0], server))
            except ConnectionFailed:
                continue
            if slots:
                self._slots, self._is_stale = slots, False
                return


def _slots(reply: Reply, asked: Server) -> Sequence[tuple[range, Server]]:
    """Runs of slots with their masters, as `CLUSTER SLOTS` tells them; a node that knows no address means itself."""
    found: list[tuple[range, Server]] = []
    for entry in reply if isinstance(reply, list) else []:
        match entry:
            case [int(first), int(last), [host, int(port), *_], *_]:
                name = host.decode() if isinstance(host, bytes) and host else asked.host
                found.append((range(first, last + 1), Server(name, port)))
    return found


def _connect_to_master(url: RedisUrl, timeout_s: float) -> Connection:
    """A connection to the master, by the first Sentinel that answers. Raises ConnectionFailed."""
    why = "none was asked"
    question = [b"SENTINEL", b"get-master-addr-by-name", url.master.encode()]
    for sentinel in url.servers:
        try:
            with Connection(sentinel, url.sentinel_login, timeout_s) as connection:
                answer = connection.ask([question])[0]
        except ConnectionFailed as error:
            why = str(error)
            continue
        if isinstance(answer, list) and len(answer) == 2:
            host, port = answer
            if isinstance(host, bytes) and isinstance(port, bytes):
                return Connection(Server(host.decode(), int(port)), url.login, timeout_s)
        why = f"{sentinel} knows no master {url.master!r}"
    raise ConnectionFailed(f"no Sentinel names the master: {why}")
