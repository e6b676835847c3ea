"""Who is ill and who is only busy: judged by what a replica answers, by its progress, and by nothing that others do."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.integration.client import Question, ask, assert_broken, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import BRISK, Json, RunningGateway, canned, serving, tier
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

OFTEN: Json = {"interval_s": 0.3, "timeout_s": 0.5, "down_after": 2, "up_after": 2}
PROBED: Json = {"probe": {"prompt": "One, two,", "max_tokens": 8}}


async def becomes(
    gateway: RunningGateway, engine: EngineProcess, *states: str, within_s: float = 6.0
) -> None:
    async def has_state() -> bool:
        return await gateway.state_of(engine) in states

    await eventually(has_state, within_s)


# 19: /health says 200, and the engine is dead


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "hang"},
        {"kind": "error", "status": 500},
        {"kind": "wrong"},
        {"kind": "garbage", "text": "!"},
        {"kind": "garbage", "text": ""},
        {"kind": "no_tokens"},
        {"kind": "unhealthy"},
        {"kind": "hang", "health": True},
    ],
    ids=lambda fault: "-".join(str(v) for v in fault.values()),
)
async def test_a_replica_that_answers_no_known_prompt_is_out(
    engines: Engines, config: Path, fault: Json
) -> None:
    """Without any traffic; and it comes back when it answers again."""
    async with serving(
        config, tier("primary", *engines.primary, slo=BRISK, **PROBED), health=OFTEN
    ) as gateway:
        await engines.a.fault(**fault)
        await becomes(gateway, engines.a, "down", "quarantined")
        assert await gateway.state_of(engines.b) == "ready"
        question = Question(tokens=5)
        for _ in range(5):
            answer = await ask(gateway.url, question)
            assert_whole(question, answer)
            assert answer.headers["x-served-replica"] in engines.b.url
        await engines.a.fault("none")
        await becomes(gateway, engines.a, "ready")


@pytest.mark.parametrize("stream", [True, False])
async def test_progress_shows_a_dead_core_at_once(engines: Engines, config: Path, stream: bool) -> None:
    """Streams go silent while /health says 200: out within a second, long before any probe."""
    rare: Json = {"interval_s": 60.0, "timeout_s": 5.0}
    question = Question("chat", stream, 400)
    async with serving(config, tier("primary", *engines.primary, slo=BRISK), health=rare) as gateway:
        tasks = [asyncio.create_task(ask(gateway.url, question)) for _ in range(6)]

        async def all_decode() -> bool:
            stats = [await e.stats() for e in engines.primary]
            return sum(s["running"] for s in stats) == 6 and all(s["tokens"] > 60 for s in stats)

        await eventually(all_decode)
        await engines.a.fault("hang")
        at = time.monotonic()
        await becomes(gateway, engines.a, "suspect", "down", within_s=1.5)
        assert time.monotonic() - at < 1.5
        for answer in await asyncio.gather(*tasks):
            assert_whole(question, answer)
            assert answer.longest_gap_s < 2.0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("count", "timeout_s", "worst"), [(1, 5.0, "suspect"), (2, 5.0, "suspect"), (1, 0.5, "down")]
)
async def test_where_nobody_could_go_on_a_pause_breaks_nothing(
    engines: Engines, config: Path, count: int, timeout_s: float, worst: str, stream: bool
) -> None:
    """A lone replica, or all of a tier at once, as on one machine: what was under way and what comes meanwhile is served."""
    health = {**OFTEN, "timeout_s": timeout_s}
    question, meanwhile = Question("chat", stream, 400), Question("chat", stream, 5)
    replicas = engines.primary[:count]
    async with serving(config, tier("primary", *replicas, slo=BRISK, **PROBED), health=health) as gateway:
        tasks = [asyncio.create_task(ask(gateway.url, question)) for _ in range(4)]

        async def all_decode() -> bool:
            stats = [await e.stats() for e in replicas]
            return sum(s["running"] for s in stats) == 4 and all(s["tokens"] > 60 for s in stats)

        await eventually(all_decode)
        for engine in replicas:
            engine.freeze()
        for engine in replicas:
            await becomes(gateway, engine, worst)
        new = asyncio.create_task(ask(gateway.url, meanwhile)) if worst == "suspect" else None
        for engine in replicas:
            engine.thaw()
        for answer in await asyncio.gather(*tasks):
            assert_whole(question, answer)
        if new is not None:
            assert_whole(meanwhile, await new)


@pytest.mark.usefixtures("brief_hope")
async def test_whom_nobody_could_serve_is_told_so_in_the_end(engines: Engines, config: Path) -> None:
    question = Question("chat", True, 400)
    async with serving(config, tier("primary", engines.a, slo=BRISK), health=OFTEN) as gateway:
        task = asyncio.create_task(ask(gateway.url, question))

        async def decodes() -> bool:
            return bool((await engines.a.stats())["tokens"] > 60)

        await eventually(decodes)
        engines.a.freeze()
        assert_broken(question, await task)


# 20: saturation is not death


async def test_a_flooded_engine_stays_in_rotation(engines: Engines, config: Path) -> None:
    """Probes time out behind its own queue; tokens keep coming."""
    health = {**OFTEN, "timeout_s": 0.2}
    question = Question(tokens=300)
    async with serving(config, tier("primary", engines.a, slots=None, **PROBED), health=health) as gateway:
        tasks = [asyncio.create_task(ask(gateway.url, question)) for _ in range(24)]
        while not all(task.done() for task in tasks):
            assert await gateway.state_of(engines.a) == "ready"
            await asyncio.sleep(0.05)
        for task in tasks:
            assert_whole(question, task.result())
        assert (await engines.a.stats())["peak_running"] == 8


# 21: one hung backend


async def test_a_frozen_replica_delays_no_other_check(engines: Engines, config: Path) -> None:
    tiers = [tier("primary", *engines.primary, slo=BRISK, **PROBED), tier("small", engines.small, **PROBED)]
    async with serving(config, *tiers, health=OFTEN) as gateway:
        engines.a.freeze()
        await engines.b.kill()
        at = time.monotonic()
        await becomes(gateway, engines.b, "down", within_s=3.0)
        assert time.monotonic() - at < 3.0
        await becomes(gateway, engines.a, "down")
        answer = await ask(gateway.url, Question(tokens=5))
        assert_whole(Question(tokens=5), answer)
        assert answer.headers["x-served-tier"] == "small"
        engines.a.thaw()
        await becomes(gateway, engines.a, "ready")


async def test_a_frozen_replica_holds_up_no_request_to_another(engines: Engines, config: Path) -> None:
    question = Question(tokens=5)
    async with serving(
        config, tier("primary", *engines.primary, slo=BRISK, **PROBED), health=OFTEN
    ) as gateway:
        engines.a.freeze()
        answers = await asyncio.gather(*(ask(gateway.url, question) for _ in range(8)))
        for answer in answers:
            assert_whole(question, answer)
        await becomes(gateway, engines.a, "down", "suspect")
        at = time.monotonic()
        for _ in range(10):
            assert_whole(question, await ask(gateway.url, question))
        assert time.monotonic() - at < 1.5


async def test_probes_keep_their_time_under_load(engines: Engines, config: Path) -> None:
    """A replica that comes back is found while all others are busy."""
    question = Question(tokens=300)
    async with serving(
        config, tier("primary", *engines.primary, slots=None, **PROBED), health=OFTEN
    ) as gateway:
        await engines.a.kill()
        await becomes(gateway, engines.a, "down")
        tasks = [asyncio.create_task(ask(gateway.url, question)) for _ in range(40)]
        await engines.a.restart()
        await becomes(gateway, engines.a, "ready", within_s=4.0)
        for answer in await asyncio.gather(*tasks):
            assert_whole(question, answer)


# 22: a backend that needs a key


@pytest.mark.parametrize("key", ["right", "wrong", None])
async def test_probes_carry_the_replicas_key(config: Path, key: str | None) -> None:
    more = {} if key is None else {"api_key": key}
    async with (
        EngineProcess(token_ms=1, api_key="right") as engine,
        serving(config, tier("primary", engine, **PROBED, **more), canned(), health=OFTEN) as gateway,
    ):
        answer = await ask(gateway.url, Question(tokens=5).with_({"authorization": "Bearer the-clients-own"}))
        if key == "right":
            assert_whole(Question(tokens=5), answer)
            assert await gateway.state_of(engine) == "ready"
            assert (await gateway.status())["models"]["chat"]["ready"]
        else:
            assert answer.headers["x-served-tier"] == "canned"
            await becomes(gateway, engine, "down", "starting")
        _, status = await gateway.get("/status")
        assert b"right" not in status
        assert b"wrong" not in status
