"""What replicas hold of prompts: told by their engines, the same on every gateway, gone when it is gone."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.policy.prefix import prefix_chain
from gateway.request import parse_request, rendered
from replicas.engines import EngineSpec
from replicas.lifecycle import Patience
from replicas.supervisor import ReplicaSpec, Supervisor
from state_store.embedded import EmbeddedRedis
from state_store.guarded import GuardedStateStore
from state_store.protocol import StateStore
from state_store.redis import RedisStateStore
from tests.integration.client import Json, Question, ask, assert_whole
from tests.integration.rig import PATIENT, RunningGateway, serving
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = Path(__file__).parents[2]
ENGINE = (sys.executable, "-m", "loadtests.engine", "--host", "{host}", "--port", "{port}")
TELLING = (*ENGINE, "--kv-events", "{kv_events}", "--token-ms", "2", "--kv-blocks")
TIER: Json = {"name": "primary", "backend": "vllm", "model": "m", "served_model": "m", "slo": PATIENT}
QUICK = Patience(check_every_s=0.2, drain_settle_s=0.0, stop_grace_s=1.0)


@pytest_asyncio.fixture(loop_scope="session")
async def redis() -> AsyncIterator[EmbeddedRedis]:
    server = EmbeddedRedis()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def patient(server: EmbeddedRedis) -> StateStore:
    return GuardedStateStore(RedisStateStore(server.url, timeout_s=5.0))


@asynccontextmanager
async def supervised(server: EmbeddedRedis, name: str, kv_blocks: int) -> AsyncIterator[Supervisor]:
    """A replica of the tier whose engine tells what it holds."""
    engine = EngineSpec(
        "command", "m", "m", 8, argv=(*TELLING, f"{kv_blocks}"), env={"PYTHONPATH": str(ROOT)}
    )
    store = patient(server)
    spec = ReplicaSpec(name, "chat", "primary", engine, heartbeat_s=0.2)
    supervisor = Supervisor(spec, store, patience=QUICK)
    running = asyncio.create_task(supervisor.run())
    try:
        await asyncio.wait_for(supervisor.until_ready(), 20)
        yield supervisor
    finally:
        await supervisor.stop()
        await running
        await store.close()


def long(number: int) -> Question:
    """A prompt of about 60 blocks of the engine."""
    return Question(tokens=4, prompt=f"{number:02d} rivers and rain " * 60)


def depths(gateway: RunningGateway, question: Question, *replicas: str) -> list[int]:
    """How many leading blocks of the question each replica holds, as the gateway knows."""
    request = parse_request("chat", json.dumps(question.body).encode(), {})
    chain = prefix_chain(rendered(request))
    assert len(chain) > 1
    index = gateway.gateway._models["chat"].fleet.prefixes
    return [index.depth(replica, chain) for replica in replicas]


async def are_ready(gateway: RunningGateway, count: int) -> bool:
    return [r["state"] for r in (await gateway.replicas()).values()] == ["ready"] * count


async def test_blocks_that_were_evicted_leave_every_gateway_within_a_second(
    config: Path, redis: EmbeddedRedis
) -> None:
    async with (
        supervised(redis, "r0", kv_blocks=150),
        serving(config, TIER, store=patient(redis)) as one,
        serving(config, TIER, store=patient(redis)) as two,
    ):
        for gateway in (one, two):
            await eventually(lambda g=gateway: are_ready(g, 1))  # type: ignore[misc]
        # An engine may be ready a moment before its events are listened to: what it stored until then is asked for.
        assert_whole(long(0), await ask(one.url, long(0)))
        await eventually(lambda: holds_more_than(one, 30))

        async def is_known() -> bool:
            return min(*depths(one, long(0), "r0"), *depths(two, long(0), "r0")) > 1

        await eventually(is_known)
        # Others that push it out.
        for number in range(1, 4):
            assert_whole(long(number), await ask(two.url, long(number)))

        async def is_gone() -> bool:
            return depths(one, long(0), "r0") == depths(two, long(0), "r0") == [0]

        await eventually(is_gone, 1.0)

        async def has_the_last() -> bool:
            return depths(one, long(3), "r0")[0] > 1

        await eventually(has_the_last, 1.0)


async def holds_more_than(gateway: RunningGateway, blocks: int) -> bool:
    return all(r["held_blocks"] > blocks for r in (await gateway.replicas()).values())


async def test_gateways_that_all_restart_still_send_a_prompt_where_it_is(
    config: Path, redis: EmbeddedRedis
) -> None:
    async with supervised(redis, "r0", 4096), supervised(redis, "r1", 4096):
        homes: dict[int, str] = {}
        async with serving(config, TIER, store=patient(redis)) as first:
            await eventually(lambda: are_ready(first, 2))
            for number in range(6):
                homes[number] = (await ask(first.url, long(number))).headers["x-served-replica"]

        async with serving(config, TIER, store=patient(redis), routing={}) as second:
            await eventually(lambda: are_ready(second, 2))

            async def knows_all() -> bool:
                return all(depths(second, long(n), home)[0] > 1 for n, home in homes.items())

            await eventually(knows_all, 3.0)
            for number, home in homes.items():
                question = long(number)
                longer = Question(tokens=4, prompt=question.prompt + " and then?")
                assert (await ask(second.url, longer)).headers["x-served-replica"] == home
