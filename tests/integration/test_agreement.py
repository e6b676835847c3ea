"""Two gateways on one fleet and one Redis: one share for both, and each its own when Redis is gone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loadtests.processes import RedisProcess
from tests.integration.client import Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import Json, RunningGateway, serving, tier
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = Question(tokens=3)
LEFT_TO_THE_LADDER: Json = {
    "breaker": {"min_count": 100_000},
    "health": {"interval_s": 60.0},
    "retry": {"budget_share": 1.0, "budget_floor_per_s": 1000.0},
}
"""No breaker and no probe takes out a replica that fails nine times out of ten."""


async def share(gateway: RunningGateway) -> float:
    return float((await gateway.status())["models"]["chat"]["tiers"][0]["allotted"])


@asynccontextmanager
async def asking(gateway: RunningGateway) -> AsyncIterator[list[int]]:
    """Sixteen clients meanwhile, each with one question after another; how many answers were whole."""
    whole, is_over = [0], asyncio.Event()

    async def client() -> None:
        while not is_over.is_set():
            assert_whole(QUESTION, await ask(gateway.url, QUESTION))
            whole[0] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(client())
        yield whole
        is_over.set()


@pytest.mark.slow
async def test_both_show_the_same_share_and_both_go_on_without_the_store(
    engines: Engines, tmp_path: Path
) -> None:
    tiers = tier("primary", *engines.primary), tier("small", engines.small, slots=64)
    async with (
        RedisProcess() as redis,
        serving(tmp_path / "one.yaml", *tiers, store=redis.url, **LEFT_TO_THE_LADDER) as one,
        serving(tmp_path / "two.yaml", *tiers, store=redis.url, **LEFT_TO_THE_LADDER) as two,
    ):

        async def know_each_other() -> bool:
            return [await g.metric("graceway_ladder_peers") for g in (one, two)] == [1, 1]

        await eventually(know_each_other)
        for engine in engines.primary:
            await engine.fault("error", status=500, share=0.9)

        async def is_held_back_on_both() -> bool:
            shares = [await share(one), await share(two)]
            return max(shares) < 0.9 and abs(shares[0] - shares[1]) <= 0.13

        async with asking(two) as whole:
            await eventually(is_held_back_on_both)
            await redis.kill()

            async def is_alone() -> bool:
                return not (await one.metric("graceway_ladder_peers"))

            await eventually(is_alone)
            before, answered = await share(two), whole[0]

            async def goes_on() -> bool:
                return await share(two) < max(before, 0.11) and whole[0] > answered + 50

            await eventually(goes_on)
        assert_whole(QUESTION, await ask(one.url, QUESTION))
