"""The systems that a drill can be run on: the simulated fleet that ships, or the operator's own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import aiohttp

from loadtests.drill_checks import IN_FLIGHT, QUEUED
from loadtests.drill_plan import Setup
from loadtests.drill_run import Do, Target, scraped
from loadtests.fleet import MODEL, Fleet, running
from loadtests.judgement import Verify

COMMAND_WITHIN_S = 120.0


class CommandFailedError(RuntimeError):
    """The operator's own command did not do its work."""


@asynccontextmanager
async def shipped(setup: Setup, *, with_fault: bool) -> AsyncIterator[tuple[Target, Fleet]]:
    """A fleet of its own, which ends with the context."""
    async with running(setup.plan) as fleet:
        yield (
            Target(
                urls=fleet.urls,
                model=MODEL,
                verify="tokens",
                still_running=partial(_still_running, fleet),
                fault=partial(setup.fault, fleet) if with_fault else None,
                heal=partial(setup.heal, fleet) if with_fault else None,
                replicas=fleet.replica_urls,
                fronts=tuple(front.url for front in fleet.fronts),
            ),
            fleet,
        )


def own(url: str, model: str, verify: Verify, fault: str | None, heal: str | None) -> Target:
    """A system that runs already; its faults are shell commands of whoever runs it."""

    async def still_running() -> float | None:
        return await _counted_at(url)

    return Target(
        urls=(url,),
        model=model,
        verify=verify,
        still_running=still_running,
        fault=_command(fault),
        heal=_command(heal),
    )


def _command(command: str | None) -> Do:
    async def run() -> None:
        if not command:
            return
        process = await asyncio.create_subprocess_shell(command, stdin=asyncio.subprocess.DEVNULL)
        async with asyncio.timeout(COMMAND_WITHIN_S):
            status = await process.wait()
        if status:
            raise CommandFailedError(f"`{command}` ended with status {status}")

    return run


async def _still_running(fleet: Fleet) -> float | None:
    stats = await asyncio.gather(*(engine.stats() for engine in fleet.engines() if engine.is_running))
    at_engines = sum(one["running"] + one["waiting"] for one in stats)
    at_gateways = await asyncio.gather(
        *(_counted_at(front.url) for front in fleet.fronts if front.is_running)
    )
    return float(at_engines + sum(count or 0.0 for count in at_gateways))


async def _counted_at(url: str) -> float | None:
    timeout = aiohttp.ClientTimeout(total=2.0)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        metrics = await scraped(http, url)
    if metrics is None or IN_FLIGHT not in metrics:
        return None
    return metrics[IN_FLIGHT] + metrics.get(QUEUED, 0.0)
