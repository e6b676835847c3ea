"""What others run on the same replicas: a direct client, and another gateway, both over the engines' own metrics."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.integration.client import Question, ask
from tests.integration.conftest import Engines
from tests.integration.rig import PATIENT, RunningGateway, serving, tier
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHORT, LONG = Question(tokens=60), Question(tokens=400)
"""An eighth of a second, and 0.8."""
OFTEN = {"interval_s": 0.1, "stale_after_s": 1.0}


async def slots(gateway: RunningGateway, engine: EngineProcess) -> int:
    replica = next(
        r
        for t in gateway.gateway._models["chat"].fleet.tiers.values()
        for r in t.replicas.values()
        if r.place.url == engine.url
    )
    return replica.slots or 0


async def test_a_direct_clients_load_is_noticed_and_routed_around(engines: Engines, config: Path) -> None:
    async with serving(
        config, tier("primary", *engines.primary, slo=PATIENT), engine_metrics=OFTEN
    ) as gateway:
        direct = [
            asyncio.ensure_future(ask(engines.a.url, Question(tokens=1500, model="m"))) for _ in range(7)
        ]

        async def is_noticed() -> bool:
            return await slots(gateway, engines.a) <= 1

        await eventually(is_noticed, 3.0)
        assert await slots(gateway, engines.b) == 8
        answers = await asyncio.gather(*(ask(gateway.url, SHORT) for _ in range(8)))
        assert sum(a.headers["x-served-replica"] in engines.b.url for a in answers) >= 6
        for task in direct:
            task.cancel()
        await asyncio.gather(*direct, return_exceptions=True)

        async def is_forgotten() -> bool:
            return await slots(gateway, engines.a) == 8

        await eventually(is_forgotten, 3.0)


async def test_a_reading_that_is_stale_is_not_a_full_replica(engines: Engines, config: Path) -> None:
    one = tier("primary", engines.a, slo=PATIENT)
    async with serving(config, one, engine_metrics=OFTEN) as gateway:
        direct = [
            asyncio.ensure_future(ask(engines.a.url, Question(tokens=1500, model="m"))) for _ in range(8)
        ]

        async def is_noticed() -> bool:
            return await slots(gateway, engines.a) == 1

        await eventually(is_noticed, 3.0)
        gateway.gateway._models["chat"].engines.spec = gateway.gateway.spec.engine_metrics.model_copy(
            update={"interval_s": 0.0}
        )

        async def is_free() -> bool:
            return await slots(gateway, engines.a) == 8

        await eventually(is_free, 3.0)
        for task in direct:
            task.cancel()
        await asyncio.gather(*direct, return_exceptions=True)


@pytest.mark.slow
async def test_two_gateways_at_overload_share_a_replica_and_do_not_overfill_it(
    engines: Engines, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        one = tier("primary", engines.a, slo=PATIENT)
        gateways = [
            await stack.enter_async_context(serving(tmp_path / f"{n}.yaml", one, engine_metrics=OFTEN))
            for n in range(2)
        ]
        served = [0, 0]
        until = asyncio.get_running_loop().time() + 9.0

        async def client(which: int) -> None:
            while asyncio.get_running_loop().time() < until:
                answer = await ask(gateways[which].url, LONG)
                is_late = asyncio.get_running_loop().time() > until - 4.0
                served[which] += is_late and answer.status == 200

        async def sampled() -> list[int]:
            found = []
            await asyncio.sleep(4.0)
            while asyncio.get_running_loop().time() < until:
                stats = await engines.a.stats()
                found.append(stats["running"] + stats["waiting"])
                await asyncio.sleep(0.05)
            return found

        # The first gateway has the replica to itself.
        clients = [asyncio.ensure_future(client(0)) for _ in range(14)]
        await asyncio.sleep(1.0)
        clients += [asyncio.ensure_future(client(1)) for _ in range(14)]
        loads = sorted(await sampled())
        await asyncio.gather(*clients)
        assert loads[len(loads) // 2] <= 9
        assert loads[-1] <= 8 + 4
        assert min(served) / sum(served) >= 0.25
