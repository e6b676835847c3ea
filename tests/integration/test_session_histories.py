"""Short histories of sessions through two gateways while their Redis freezes, is emptied or stalls, each one checked.

`python -m loadtests.session_check` runs long ones, with processes that are killed and servers that take over.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from loadtests.processes import RedisProcess
from loadtests.redis_groups import Sentinels, running_sentinels
from loadtests.session_clients import SessionClients, until_settled
from loadtests.session_history import check
from tests.integration.conftest import Engines
from tests.integration.rig import serving, tier

pytestmark = pytest.mark.asyncio(loop_scope="session")

Act = Callable[[RedisProcess, Engines], Awaitable[None]]


async def freeze(redis: RedisProcess, engines: Engines) -> None:
    redis.freeze()
    await asyncio.sleep(0.3)
    redis.thaw()


async def empty(redis: RedisProcess, engines: Engines) -> None:
    await redis.kill()
    await redis.start()


async def kill_replica(redis: RedisProcess, engines: Engines) -> None:
    await engines.a.kill()
    await engines.a.restart()


@pytest.mark.parametrize(
    ("act", "may_lose"),
    [(freeze, False), (empty, True), (kill_replica, False)],
    ids=["frozen", "emptied", "replica killed"],
)
async def test_no_turn_is_lost_silently(
    engines: Engines, config: Path, tmp_path: Path, act: Act, may_lose: bool
) -> None:
    primary, rng = tier("primary", *engines.primary, slots=32), random.Random(1)
    async with (
        RedisProcess() as redis,
        serving(config, primary, store=redis.url) as one,
        serving(tmp_path / "two.yaml", primary, store=redis.url) as two,
    ):
        urls = [one.url, two.url]
        clients = SessionClients(urls, "chat", rng)
        holding = asyncio.create_task(clients.run(4, 0.9))
        await asyncio.sleep(0.2)
        await act(redis, engines)
        await holding
        await until_settled(urls)
        heals_at = asyncio.get_running_loop().time()
        await clients.last_turns()
        verdict = check(clients.turns, may_lose=may_lose, heals_at=heals_at)
        assert verdict.violations == ()
        assert verdict.turns > 20
        assert clients.failed == 0
        assert bool(verdict.epochs) == may_lose


async def fail_over(group: Sentinels) -> None:
    """Another master, while the old one goes on beside it for a moment."""
    assert await group.sentinels[0].ask("SENTINEL", "FAILOVER", "state") == b"+OK\r\n"
    async with asyncio.timeout(10.0):
        while b"role:master" not in await group.replica.ask("INFO", "replication"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(1.0)
    # A Sentinel would see to that in ten seconds.
    await group.master.ask("REPLICAOF", "127.0.0.1", str(group.replica.port))


async def test_no_turn_is_lost_silently_while_a_master_is_replaced(
    engines: Engines, config: Path, tmp_path: Path
) -> None:
    primary = tier("primary", *engines.primary, slots=32)
    async with (
        running_sentinels() as group,
        serving(config, primary, store=group.url) as one,
        serving(tmp_path / "two.yaml", primary, store=group.url) as two,
    ):
        urls = [one.url, two.url]
        clients = SessionClients(urls, "chat", random.Random(1))
        holding = asyncio.create_task(clients.run(4, 2.5))
        await asyncio.sleep(0.3)
        await fail_over(group)
        await holding
        await until_settled(urls)
        heals_at = asyncio.get_running_loop().time()
        await clients.last_turns()
        verdict = check(clients.turns, heals_at=heals_at)
        assert verdict.violations == ()
        # On a busy machine few turns are confirmed in time on both sides of it.
        assert verdict.turns - verdict.local > 8
        assert verdict.epochs >= 1
        assert clients.failed == 0
