"""What drills do to the simulated fleet, and how they undo it."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import aiohttp

from loadtests.cut_proxy import Proxy
from loadtests.fleet import Fleet, Plan, graceway_config
from loadtests.processes import RedisProcess
from loadtests.stepped_clock import write_step
from loadtests.trial import Act

DRAINED_WITHIN_S = 20.0


def switch(kind: str, **details: object) -> Act:
    """A fault of the first replica's engine; `none` heals it."""

    async def act(fleet: Fleet) -> None:
        await fleet.replicas[0].fault(kind, **details)

    return act


async def kill_replica(fleet: Fleet) -> None:
    await fleet.replicas[0].kill()


async def restart_replica(fleet: Fleet) -> None:
    await fleet.replicas[0].restart()


async def freeze_replica(fleet: Fleet) -> None:
    fleet.replicas[0].freeze()


async def thaw_replica(fleet: Fleet) -> None:
    fleet.replicas[0].thaw()


async def kill_primary(fleet: Fleet) -> None:
    await asyncio.gather(*(replica.kill() for replica in fleet.replicas))


async def restart_primary(fleet: Fleet) -> None:
    await asyncio.gather(*(replica.restart() for replica in fleet.replicas))


def _store(fleet: Fleet) -> RedisProcess:
    assert fleet.store is not None, "the plan has no store"
    return fleet.store


async def kill_store(fleet: Fleet) -> None:
    await _store(fleet).kill()


async def start_store(fleet: Fleet) -> None:
    await _store(fleet).start()


async def freeze_store(fleet: Fleet) -> None:
    _store(fleet).freeze()


async def thaw_store(fleet: Fleet) -> None:
    _store(fleet).thaw()


async def follow_new_master(fleet: Fleet) -> None:
    """The store that died comes back as the replica of the one that took its place."""
    assert fleet.sentinels is not None, "the plan has no Sentinels"
    await _store(fleet).start()
    await _store(fleet).ask("REPLICAOF", "127.0.0.1", str(fleet.sentinels.replica.port))


async def kill_gateway(fleet: Fleet) -> None:
    await fleet.fronts[0].kill()


async def start_gateway(fleet: Fleet) -> None:
    await fleet.fronts[0].start()


def write_config(fleet: Fleet, plan: Plan, more_tiers: str = "", leave_out: int = 0) -> None:
    """Another config for the gateways, without the first `leave_out` replicas."""
    assert fleet.config is not None
    plan = replace(plan, more_config=more_tiers + plan.more_config)
    fleet.config.write_text(
        graceway_config(plan, fleet.replica_urls[leave_out:], fleet.small, fleet.store_url)
    )


async def reload(fleet: Fleet) -> list[int]:
    """Has every gateway read its config again; their answers' statuses."""
    async with aiohttp.ClientSession() as http:
        return [await _reloaded(http, front.url) for front in fleet.fronts]


async def _reloaded(http: aiohttp.ClientSession, url: str) -> int:
    async with http.post(f"{url}/admin/reload") as response:
        return response.status


async def restart_gateways(fleet: Fleet) -> None:
    """How a config is changed where it can't be reloaded."""
    for front in fleet.fronts:
        await front.stop()
        await front.start()


async def until_replica_is_idle(fleet: Fleet) -> None:
    """Waits until nothing runs on the first replica; raises TimeoutError."""
    async with asyncio.timeout(DRAINED_WITHIN_S):
        while True:
            if not await _running(fleet):
                return
            await asyncio.sleep(0.05)


async def _running(fleet: Fleet) -> int:
    stats = await fleet.replicas[0].stats()
    return int(stats["running"] + stats["waiting"])


async def stop_replica(fleet: Fleet) -> None:
    with contextlib.suppress(ProcessLookupError):
        await fleet.replicas[0].kill()


def cut_ways(*numbers: int) -> Act:
    """Nothing comes through between the front and these replicas any more, and nobody is told."""
    return _on_ways(numbers, Proxy.cut)


def delay_way(seconds: float) -> Act:
    """To the first replica, each way."""
    return _on_ways((0,), lambda way: way.delay(seconds))


def lose_on_way(share: float) -> Act:
    """To the first replica, of the segments."""
    return _on_ways((0,), lambda way: way.lose(share))


def mend_ways(*numbers: int) -> Act:
    return _on_ways(numbers or (0,), Proxy.mend)


def _on_ways(numbers: tuple[int, ...], do: Callable[[Proxy], None]) -> Act:
    async def act(fleet: Fleet) -> None:
        for number in numbers:
            do(fleet.ways[number])

    return act


def on_store_way(do: Callable[[Proxy], None]) -> Act:
    """On what is between the gateways and the store."""

    async def act(fleet: Fleet) -> None:
        assert fleet.store_way is not None, "the plan has no ways"
        do(fleet.store_way)

    return act


async def lose_node(fleet: Fleet) -> None:
    """The first replica and the network of its machine are gone in one moment: not even a reset comes."""
    fleet.ways[0].cut()
    await fleet.replicas[0].kill()


async def bring_node_back(fleet: Fleet) -> None:
    await fleet.replicas[0].restart()
    fleet.ways[0].mend()


async def fill_store(fleet: Fleet) -> None:
    """Reads are answered, writes are refused."""
    await _store(fleet).ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await _store(fleet).ask("CONFIG", "SET", "maxmemory", "1")


async def make_room_in_store(fleet: Fleet) -> None:
    await _store(fleet).ask("CONFIG", "SET", "maxmemory", "0")


async def upgrade_gateways(fleet: Fleet) -> None:
    """One after the other ends as it is asked to and starts anew."""
    for front in fleet.fronts:
        await front.stop(DRAINED_WITHIN_S)
        await front.start()


async def replace_gateways(fleet: Fleet) -> None:
    """One after the other is killed and starts anew."""
    for front in fleet.fronts:
        await front.kill()
        await front.start()


def step_clock(seconds: float) -> Act:
    """The first gateway's, to so far ahead of all others'."""

    async def act(fleet: Fleet) -> None:
        assert fleet.clock is not None, "the plan has no clock"
        write_step(fleet.clock, seconds)

    return act


def both(first: Act, second: Act) -> Act:
    """One after the other."""

    async def act(fleet: Fleet) -> None:
        await first(fleet)
        await second(fleet)

    return act
