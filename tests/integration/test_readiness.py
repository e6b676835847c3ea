"""Models that load, are absent, or share a gateway: what is ready is said per model, and no caller pays for another's."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.client import Kind, Question, ask, assert_refused, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import BRISK, Json, all_idle, canned, serving, tier
from tests.rig import EngineProcess, eventually, free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")

STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
OFTEN: Json = {"interval_s": 0.3, "timeout_s": 0.5}


# 31: nobody serves the model now


def unstarted(**more: object) -> Json:
    """A managed tier of which no replica has registered yet."""
    return {"name": "primary", "backend": "vllm", "model": "somewhere/some-model", **more}


@STREAMED
@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_a_tier_without_replicas_is_gone_down_from(
    engines: Engines, config: Path, kind: Kind, stream: bool
) -> None:
    question = Question(kind, stream)
    async with serving(config, unstarted(), tier("small", engines.small)) as gateway:
        answer = await ask(gateway.url, question)
        assert_whole(question, answer)
        assert answer.headers["x-served-tier"] == "small"
        assert answer.headers["x-degraded"] == "no_replica"
        never = await ask(gateway.url, question.with_({"x-degradation": "never"}))
        assert_refused(never, 503, "no_replica")
        assert int(never.headers["retry-after"]) >= 1
        tiers = (await gateway.status())["models"]["chat"]["tiers"]
        assert [t["serving"] for t in tiers] == [False, True]
        assert tiers[0]["reason"]


# 33: ready per model, and as a whole


@STREAMED
async def test_a_model_that_is_away_leaves_the_others_alone(
    engines: Engines, config: Path, stream: bool
) -> None:
    absent = f"http://127.0.0.1:{free_port()}"
    models = {"chat": [tier("primary", engines.a)], "other": [tier("primary", absent)]}
    async with serving(config, models=models, health=OFTEN) as gateway:
        status = await gateway.status()
        assert (status["models"]["chat"]["ready"], status["models"]["other"]["ready"]) == (True, False)
        assert not status["ready"]
        assert (await gateway.get("/health/ready"))[0] == 503
        assert (await gateway.get("/health/live"))[0] == 200
        assert_whole(Question("chat", stream), await ask(gateway.url, Question("chat", stream)))
        answer = await ask(gateway.url, Question("chat", stream, model="other"))
        assert_refused(answer, 503, "no_replica")
        async with EngineProcess(token_ms=1, port=int(absent.rpartition(":")[2])):

            async def is_ready() -> bool:
                return (await gateway.get("/health/ready"))[0] == 200

            await eventually(is_ready)
            question = Question("chat", stream, model="other")
            assert_whole(question, await ask(gateway.url, question))

            async def is_away() -> bool:
                return (await gateway.get("/health/ready"))[0] == 503

        await eventually(is_away)
        assert_whole(Question("chat", stream), await ask(gateway.url, Question("chat", stream)))


async def test_a_lower_tier_keeps_a_model_ready(engines: Engines, config: Path) -> None:
    absent = f"http://127.0.0.1:{free_port()}"
    async with serving(config, tier("primary", absent), canned("Later."), health=OFTEN) as gateway:
        assert (await gateway.get("/health/ready"))[0] == 200
        answer = await ask(gateway.url, Question())
        assert (answer.text, answer.headers["x-degraded"]) == ("Later.", "no_replica")


async def test_a_replica_that_drains_at_a_reload_finishes_and_gets_nothing_new(
    engines: Engines, config: Path
) -> None:
    question = Question(tokens=300)
    async with serving(config, tier("primary", *engines.primary)) as gateway:
        task = asyncio.create_task(ask(gateway.url, question))

        async def decodes() -> bool:
            return bool((await engines.a.stats())["tokens"] > 30)

        await eventually(decodes)
        await gateway.reload(tier("primary", engines.b))
        seen = (await engines.a.stats())["requests"]
        for _ in range(5):
            assert_whole(Question(), await ask(gateway.url, Question()))
        assert_whole(question, await task)
        assert (await engines.a.stats())["requests"] == seen


@pytest.mark.parametrize(
    ("name", "degradation"),
    [("primary", "never"), ("best", "allow"), ("best", "never")],
    ids=["of a tier that stays", "with its tier", "with its tier, and no other will do"],
)
async def test_a_replica_that_hangs_after_a_reload_took_it_out_is_noticed(
    engines: Engines, config: Path, name: str, degradation: str
) -> None:
    question = Question(tokens=300).with_({"x-degradation": degradation})
    async with serving(config, tier("primary", engines.a, slo=BRISK)) as gateway:
        task = asyncio.create_task(ask(gateway.url, question))

        async def decodes() -> bool:
            return bool((await engines.a.stats())["tokens"] > 30)

        await eventually(decodes)
        await gateway.reload(tier(name, engines.b, slo=BRISK))
        await engines.a.fault(kind="hang")
        answer = await asyncio.wait_for(task, 20.0)
        if name == "primary":
            assert_whole(question, answer)
        elif degradation == "allow":
            # The simulated engines speak one language, so that a spliced answer reads like an undisturbed one.
            assert (answer.text, answer.dones) == (question.expected.text, 1)
            assert answer.spliced
        else:
            assert (len(answer.errors), answer.dones) == (1, 0)
        await all_idle(gateway, engines.b)


async def test_a_model_that_a_reload_takes_out_goes_on_with_its_streams_elsewhere(
    engines: Engines, config: Path
) -> None:
    """Those that run and those that wait, though the first one's replica falls silent; then nobody asks it any more."""
    question = Question(tokens=150)
    slo = {**BRISK, "ttft_s": 10.0}
    models = {"chat": [tier("primary", *engines.primary, slo=slo, slots=1)], "other": [canned()]}
    async with serving(config, models=models, health=OFTEN) as gateway:
        tasks = [asyncio.create_task(ask(gateway.url, question)) for _ in range(3)]

        async def waits() -> bool:
            decodes = min([(await engine.stats())["tokens"] for engine in engines.primary]) > 30
            return decodes and (await gateway.status())["models"]["chat"]["tiers"][0]["waiting"] == 1

        await eventually(waits)
        await gateway.reload(models={"other": [canned()]})
        await engines.a.fault(kind="hang")
        assert (await ask(gateway.url, Question())).status == 404
        for answer in await asyncio.gather(*tasks):
            assert_whole(question, answer)

        async def has_retired() -> bool:
            return not any(task.get_name() == "retire chat" for task in asyncio.all_tasks())

        await eventually(has_retired)


async def test_what_a_caller_accepts_is_not_more_after_a_reload_took_a_tier_out(
    engines: Engines, config: Path
) -> None:
    """Who waits for a place and accepts the second tier of three does not get the third because it is the second now."""
    third = canned("Later.")
    question = Question(tokens=150).with_({"x-degradation": "second"})
    async with serving(
        config, tier("best", engines.b, slots=1), tier("second", engines.a, slots=1), third
    ) as gateway:
        tasks = [asyncio.create_task(ask(gateway.url, question)) for _ in range(4)]

        async def waits() -> bool:
            return sum(t["waiting"] for t in (await gateway.status())["models"]["chat"]["tiers"]) == 2

        await eventually(waits)
        await gateway.reload(tier("second", engines.a, slots=1), third)
        answers = await asyncio.gather(*tasks)
        for answer in answers:
            assert_whole(question, answer)
        assert "canned" not in {answer.headers["x-served-tier"] for answer in answers}
        await all_idle(gateway, engines.a, engines.b)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_tier_that_a_reload_takes_out_finishes_and_who_waits_for_it_is_served_by_others(
    engines: Engines, config: Path, stream: bool
) -> None:
    question = Question(stream=stream, tokens=150)
    async with serving(config, tier("primary", engines.a, slots=1)) as gateway:
        tasks = [asyncio.create_task(ask(gateway.url, question)) for _ in range(3)]

        async def waits() -> bool:
            decodes = (await engines.a.stats())["tokens"] > 30
            return decodes and (await gateway.status())["models"]["chat"]["tiers"][0]["waiting"] == 2

        await eventually(waits)
        await gateway.reload(tier("best", engines.b))
        answers = await asyncio.gather(*tasks)
        for answer in answers:
            assert_whole(question, answer)
        assert [answer.headers["x-served-tier"] for answer in answers].count("primary") == 1
        assert (await gateway.get("/metrics"))[0] == 200
        await all_idle(gateway, engines.a, engines.b)


@pytest.mark.parametrize(
    "more", [{"slots": 3}, {"slots": None}, {"quality": 0.9}, {"api_key": "k"}, {"slo": BRISK}], ids=str
)
async def test_a_reload_that_retunes_a_tier_refuses_nobody(
    engines: Engines, config: Path, more: Json
) -> None:
    """Nor does it forget which replica is out of rotation."""
    absent = f"http://127.0.0.1:{free_port()}"
    async with serving(config, tier("primary", engines.a, absent), health=OFTEN) as gateway:
        stopped = asyncio.Event()

        async def keep_asking() -> None:
            while not stopped.is_set():
                assert_whole(Question(), await ask(gateway.url, Question()))

        clients = [asyncio.create_task(keep_asking()) for _ in range(3)]
        for tiers in (tier("primary", engines.a, absent, **more), tier("primary", engines.a, absent)) * 2:
            await gateway.reload(tiers)
            await asyncio.sleep(0.05)
        stopped.set()
        await asyncio.gather(*clients)
        assert await gateway.state_of(engines.a) == "ready"
        assert (await gateway.replicas())[absent]["state"] != "ready"
