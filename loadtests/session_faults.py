"""What happens to gateways, replicas and Redis while sessions are held, each with its way back."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from loadtests.processes import EngineProcess, RedisProcess, ServerProcess
from loadtests.redis_groups import Sentinels

HEALTHY_WITHIN_S = 40.0


@dataclass(slots=True)
class Rig:
    """Two gateways or more, replicas, and a Redis with its replica and Sentinels."""

    gateways: list[ServerProcess]
    engines: list[EngineProcess]
    redis: Sentinels
    died: list[tuple[int, float]] = field(default_factory=list)
    """Gateways that were killed, and when."""

    @property
    def servers(self) -> tuple[RedisProcess, RedisProcess]:
        return self.redis.master, self.redis.replica

    async def master(self) -> RedisProcess:
        """The server that is the master now."""
        for server in self.servers:
            if server.is_running and b"role:master" in await server.ask("INFO", "replication"):
                return server
        return next(server for server in self.servers if server.is_running)

    async def dataset(self) -> bytes:
        """A name that changes whenever another server takes over, or the same one empty."""
        said = await (await self.master()).ask("INFO", "replication")
        return next((line for line in said.split(b"\r\n") if line.startswith(b"master_replid:")), b"")

    async def until_healthy(self) -> None:
        """Returns once all run, one Redis follows the other, and the Sentinels agree on which."""
        async with asyncio.timeout(HEALTHY_WITHIN_S):
            while not await self._is_healthy():  # noqa: ASYNC110 - other processes send no events
                await asyncio.sleep(0.05)

    async def _is_healthy(self) -> bool:
        said = [await server.ask("INFO", "replication") for server in self.servers]
        masters = [s for s, told in zip(self.servers, said, strict=True) if b"role:master" in told]
        if len(masters) != 1 or not any(b"master_link_status:up" in told for told in said):
            return False
        named = [
            await sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "state")
            for sentinel in self.redis.sentinels
        ]
        return all(f"\r\n{masters[0].port}\r\n".encode() in answer for answer in named)


Act = Callable[[Rig, random.Random], Awaitable[Callable[[], Awaitable[None]]]]
"""Does it, and returns its way back."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind. `may_lose`: whether the store may forget by it."""

    name: str
    act: Act
    may_lose: bool = True


async def _kill_gateway(rig: Rig, rng: random.Random) -> Callable[[], Awaitable[None]]:
    number = rng.randrange(len(rig.gateways))
    await rig.gateways[number].kill()
    rig.died.append((number, asyncio.get_running_loop().time()))
    return rig.gateways[number].start


async def _freeze(process: ServerProcess) -> Callable[[], Awaitable[None]]:
    process.freeze()

    async def thaw() -> None:
        process.thaw()

    return thaw


async def _freeze_gateway(rig: Rig, rng: random.Random) -> Callable[[], Awaitable[None]]:
    return await _freeze(rng.choice(rig.gateways))


async def _kill_replica(rig: Rig, rng: random.Random) -> Callable[[], Awaitable[None]]:
    engine = rng.choice(rig.engines)
    await engine.kill()
    return engine.restart


async def _freeze_replica(rig: Rig, rng: random.Random) -> Callable[[], Awaitable[None]]:
    return await _freeze(rng.choice(rig.engines))


async def _freeze_redis(rig: Rig, rng: random.Random) -> Callable[[], Awaitable[None]]:
    return await _freeze(await rig.master())


async def _kill_redis(rig: Rig, rng: random.Random) -> Callable[[], Awaitable[None]]:
    """Killed and back at once, with nothing: before any Sentinel has seen it."""
    master = await rig.master()
    await master.kill()
    await master.start()
    return _nothing


async def _kill_both(rig: Rig, rng: random.Random) -> Callable[[], Awaitable[None]]:
    """The master and a gateway, so that nobody knows all any more."""
    await _kill_redis(rig, rng)
    return await _kill_gateway(rig, rng)


async def _fail_over(rig: Rig, rng: random.Random) -> Callable[[], Awaitable[None]]:
    """The replica takes over as it is asked to, in order."""
    await rig.redis.sentinels[0].ask("SENTINEL", "FAILOVER", "state")
    return _nothing


async def _lose_master(rig: Rig, rng: random.Random) -> Callable[[], Awaitable[None]]:
    """The master dies while its replica lags behind: what it had acknowledged meanwhile is gone."""
    master = await rig.master()
    replica = next(server for server in rig.servers if server is not master)
    replica.freeze()
    await asyncio.sleep(rng.uniform(0.1, 0.3))
    await master.kill()
    replica.thaw()

    async def follow() -> None:
        """Back as the other's replica; a Sentinel would see to that in ten seconds."""
        async with asyncio.timeout(HEALTHY_WITHIN_S):
            while b"role:master" not in await replica.ask("INFO", "replication"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await master.start()
        await master.ask("REPLICAOF", "127.0.0.1", str(replica.port))

    return follow


async def _nothing() -> None:
    """It heals by itself."""


FAULTS = (
    Fault("gateway killed", _kill_gateway, may_lose=False),
    Fault("gateway frozen", _freeze_gateway, may_lose=False),
    Fault("replica killed", _kill_replica, may_lose=False),
    Fault("replica frozen", _freeze_replica, may_lose=False),
    Fault("redis frozen", _freeze_redis),
    Fault("redis killed", _kill_redis),
    Fault("redis and gateway killed", _kill_both),
    Fault("failover", _fail_over),
    Fault("master lost", _lose_master),
)
