"""Several Redis servers that belong together: a master with a replica and Sentinels, and a Cluster."""

import asyncio
import contextlib
import random
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from loadtests.processes import RedisProcess

READY_WITHIN_S = 20.0
DOWN_AFTER_MS = 1000
MASTER = "state"


@dataclass(frozen=True, slots=True)
class Sentinels:
    """A master, its replica, and the three that watch them."""

    master: RedisProcess
    replica: RedisProcess
    sentinels: tuple[RedisProcess, ...]

    @property
    def url(self) -> str:
        """For `state_store.url`."""
        return f"redis+sentinel://{','.join(s.address for s in self.sentinels)}/{MASTER}"


@asynccontextmanager
async def running_sentinels() -> AsyncIterator[Sentinels]:
    """Starts all five; yields once the Sentinels know the replica, so that a failover can succeed."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graceway-redis-")))
        master = await stack.enter_async_context(RedisProcess())
        replica = await stack.enter_async_context(RedisProcess())
        # Not on its command line: started anew once it is the master, it must not follow again.
        await replica.ask("REPLICAOF", "127.0.0.1", str(master.port))
        await _until(partial(_says, replica, b"master_link_status:up", "INFO", "replication"))
        sentinels = [
            await stack.enter_async_context(_sentinel(folder / f"{n}.conf", master)) for n in range(3)
        ]
        for sentinel in sentinels:
            await _until(partial(_knows_all, sentinel))
        yield Sentinels(master, replica, tuple(sentinels))


def _sentinel(config: Path, master: RedisProcess) -> RedisProcess:
    config.write_text(
        f"sentinel monitor {MASTER} 127.0.0.1 {master.port} 2\n"
        f"sentinel down-after-milliseconds {MASTER} {DOWN_AFTER_MS}\n"
        f"sentinel failover-timeout {MASTER} 4000\n"
    )
    return RedisProcess("--sentinel", config=config)


async def _knows_all(sentinel: RedisProcess) -> bool:
    said = (await sentinel.ask("SENTINEL", "MASTER", MASTER)).split(b"\r\n")
    told = dict(zip(said[2::4], said[4::4], strict=False))
    return told.get(b"num-slaves") == b"1" and told.get(b"num-other-sentinels") == b"2"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Three masters, and a replica of each if there are six."""

    nodes: tuple[RedisProcess, ...]

    @property
    def url(self) -> str:
        """For `state_store.url`."""
        return f"redis+cluster://{','.join(node.address for node in self.nodes[:3])}"


@asynccontextmanager
async def running_cluster(has_replicas: bool = False) -> AsyncIterator[Cluster]:
    """Starts the nodes; yields once all of them serve every slot."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graceway-redis-")))
        nodes = [_node(folder / f"{number}") for number in range(6 if has_replicas else 3)]
        await asyncio.gather(*(stack.enter_async_context(node) for node in nodes))
        await _share_slots(nodes[:3])
        for other in nodes[1:]:
            await nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", str(other.port))
        for node in nodes:
            await _until(partial(_says, node, b"cluster_state:ok", "CLUSTER", "INFO"))
            known = b"cluster_known_nodes:%d" % len(nodes)
            await _until(partial(_says, node, known, "CLUSTER", "INFO"))
        for master, replica in zip(nodes[:3], nodes[3:], strict=False):
            name = (await master.ask("CLUSTER", "MYID")).split(b"\r\n")[1].decode()
            await replica.ask("CLUSTER", "REPLICATE", name)
            await _until(partial(_says, replica, b"master_link_status:up", "INFO", "replication"))
        yield Cluster(tuple(nodes))


def _node(folder: Path) -> RedisProcess:
    folder.mkdir()
    return RedisProcess(
        *("--cluster-enabled", "yes", "--dir", str(folder), "--cluster-node-timeout", "1000"),
        *("--cluster-require-full-coverage", "no"),
        port=_free_pair(),
    )


def _free_pair() -> int:
    """A free port whose bus port, ten thousand above it, is free as well."""
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as own, socket.socket() as bus:
            own.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port


async def _share_slots(masters: list[RedisProcess]) -> None:
    share = -(-16384 // len(masters))
    for number, node in enumerate(masters):
        slots = range(number * share, min((number + 1) * share, 16384))
        await node.ask("CLUSTER", "ADDSLOTS", *(str(slot) for slot in slots))


async def _says(server: RedisProcess, wanted: bytes, *words: str) -> bool:
    return wanted in await server.ask(*words)


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(READY_WITHIN_S):
        while not await condition():  # noqa: ASYNC110 - another process's, which sends no events
            await asyncio.sleep(0.05)
