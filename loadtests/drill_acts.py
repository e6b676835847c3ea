"""What drills do to the simulated fleet, and how they undo it."""

import asyncio
import contextlib
from dataclasses import replace

import aiohttp

from loadtests.fleet import Fleet, Plan, graceway_config
from loadtests.processes import ServerProcess
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


def _store(fleet: Fleet) -> ServerProcess:
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


async def kill_gateway(fleet: Fleet) -> None:
    await fleet.fronts[0].kill()


async def start_gateway(fleet: Fleet) -> None:
    await fleet.fronts[0].start()


def write_config(fleet: Fleet, plan: Plan, more_tiers: str = "", leave_out: int = 0) -> None:
    """Another config for the gateways, without the first `leave_out` replicas."""
    assert fleet.config is not None
    store = "memory" if fleet.store is None else fleet.store.url
    plan = replace(plan, more_config=more_tiers + plan.more_config)
    fleet.config.write_text(graceway_config(plan, list(fleet.replicas[leave_out:]), fleet.small, store))


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
