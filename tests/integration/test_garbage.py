"""What a request leaves behind: nothing that only the garbage collector could take away.

A pass of the collector over what thousands of requests left stops all others for tens of milliseconds.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.http import HttpApi
from tests.integration.client import Question, ask
from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, all_idle, serving, tier
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

OURS = ("gateway.", "uvicorn.", "uvloop.")
"""The modules of what serves; the client of these tests leaves garbage of its own."""
ASKED, ROUNDS = 5, 3


@contextmanager
def garbage() -> Iterator[list[str]]:
    """Of which types there were objects in cycles when the block was left; the list is filled at its end."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        names = {f"{type(thing).__module__}.{type(thing).__qualname__}" for thing in gc.garbage}
        found += sorted(name for name in names if name.startswith(OURS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def only(connections: int, gateway: RunningGateway) -> None:
    async def are_closed() -> bool:
        api = gateway.gateway.asgi
        assert isinstance(api, HttpApi)
        return len(api.connections) == connections

    await eventually(are_closed)


async def left_by(asking: Callable[[], Awaitable[None]]) -> list[str]:
    """What it leaves each time: an earlier gateway may come out of use meanwhile, but only once."""
    rounds: list[list[str]] = []
    while len(rounds) < ROUNDS and [] not in rounds:
        with garbage() as found:
            await asking()
        rounds.append(found)
    return min(rounds)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("more", [{}, {"n": 2}], ids=["resumable", "passed through"])
async def test_answers(engines: Engines, config: Path, stream: bool, more: dict[str, int]) -> None:
    question = Question(stream=stream, tokens=5).with_(**more)

    async def some() -> None:
        for _ in range(ASKED):
            assert (await ask(gateway.url, question)).status == 200
        await only(0, gateway)

    async with serving(config, tier("primary", *engines.primary, probe=None)) as gateway:
        await some()
        assert await left_by(some) == []


async def test_refusals(engines: Engines, config: Path) -> None:
    question = Question(headers={"x-degradation": "never"})

    async def some() -> None:
        for _ in range(ASKED):
            assert (await ask(gateway.url, question)).status == 503
        await only(0, gateway)

    async with serving(config, tier("primary", "http://127.0.0.1:9", probe=None)) as gateway:
        await some()
        assert await left_by(some) == []


async def test_clients_that_leave(engines: Engines, config: Path) -> None:
    async def runs() -> bool:
        return bool((await engines.a.stats())["running"])

    async def one() -> None:
        asking = asyncio.ensure_future(ask(gateway.url, Question(tokens=3000)))
        await eventually(runs)
        asking.cancel()
        await asyncio.wait([asking])
        await all_idle(gateway, engines.a)
        # The one on which that was asked stays.
        await only(1, gateway)

    async with serving(config, tier("primary", engines.a, probe=None)) as gateway:
        await one()
        assert await left_by(one) == []
