"""One quota over two gateways that share a Redis, which is there, frozen, killed and back again."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from state_store.embedded import EmbeddedRedis
from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, serving, tier
from tests.integration.test_keys import ask, key
from tests.integration.test_store import TROUBLES
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

PER_MINUTE = 40
GATEWAYS = 2
TOLD_S = 0.25
"""Longer than two exchanges."""


@dataclass
class Region:
    """Two gateways that the same caller asks in turn."""

    gateways: list[RunningGateway]
    redis: EmbeddedRedis
    begun_at: float = field(default_factory=time.monotonic)
    admitted: int = 0

    async def flood(self, count: int, only: int | None = None) -> int:
        """How many of so many requests were answered; the others were refused with a reason and a time."""
        targets = [self.gateways[n % GATEWAYS if only is None else only] for n in range(count)]
        answers = await asyncio.gather(*(ask(g.url, "sk-a", tokens=1) for g in targets))
        refused = [headers for status, _, headers in answers if status == 429]
        assert all(h["x-shed-reason"] == "rate_limited" and int(h["retry-after"]) >= 1 for h in refused)
        self.admitted += count - len(refused)
        assert sum(status == 200 for status, _, _ in answers) == count - len(refused)
        return count - len(refused)

    def check(self) -> None:
        """Over all of the time and both gateways, no more than the quota; but for one request each."""
        allowed = PER_MINUTE * (1.0 + (time.monotonic() - self.begun_at) / 60.0)
        assert self.admitted <= allowed + GATEWAYS

    async def is_store_back(self) -> bool:
        statuses = [await gateway.status() for gateway in self.gateways]
        return all(status["state_store"]["available"] for status in statuses)


@pytest_asyncio.fixture(loop_scope="session")
async def region(engines: Engines, tmp_path: Path) -> AsyncIterator[Region]:
    async with AsyncExitStack() as stack:
        redis = EmbeddedRedis()
        await redis.start()
        stack.push_async_callback(redis.stop)
        gateways = []
        for number in range(GATEWAYS):
            keys = [key("sk-a", requests_per_minute=PER_MINUTE)]
            running = serving(
                tmp_path / f"{number}.yaml", tier("primary", engines.a), store=redis.url, keys=keys
            )
            gateways.append(await stack.enter_async_context(running))
        # They have met.
        await eventually(lambda: _know_each_other(gateways), 5.0)
        yield Region(gateways, redis)


async def _know_each_other(gateways: list[RunningGateway]) -> bool:
    buckets = [b for g in gateways for _, b in g.gateway.callers.buckets()]
    return all(b.sharers == GATEWAYS and b.level == PER_MINUTE for b in buckets)


async def test_what_two_gateways_admit_is_one_quota(region: Region) -> None:
    for _ in range(3):
        await region.flood(PER_MINUTE)
        await asyncio.sleep(TOLD_S)
    assert region.admitted >= 0.9 * PER_MINUTE
    region.check()


@pytest.mark.slow
async def test_one_gateway_alone_can_use_nearly_all_of_it(region: Region) -> None:
    for _ in range(12):
        await region.flood(10, only=0)
        await asyncio.sleep(TOLD_S)
    assert region.admitted >= 0.9 * PER_MINUTE
    await region.flood(10, only=1)
    region.check()


@pytest.mark.parametrize("signum", TROUBLES.values(), ids=TROUBLES.keys())
async def test_without_the_store_it_goes_on_within_the_quota_and_tells_later(
    region: Region, signum: signal.Signals
) -> None:
    used = await region.flood(10)
    # Each has heard what the other told.
    await asyncio.sleep(1.0 + TOLD_S)
    pid = region.redis.pid
    os.kill(pid, signum)
    try:
        await asyncio.sleep(TOLD_S)
        used += await region.flood(10)
        assert used == 20, "it goes on"
        await region.flood(2 * PER_MINUTE)
        region.check()
    finally:
        if signum == signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
    await eventually(region.is_store_back, 15.0)
    await asyncio.sleep(TOLD_S)
    # A store that is back, or begins anew, does not give the same again.
    await region.flood(PER_MINUTE)
    region.check()
