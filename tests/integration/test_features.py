"""Context features on a real Redis that is killed and frozen: what is critical is refused, all else goes on in time."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from state_store.embedded import EmbeddedRedis
from state_store.redis import RedisStateStore
from tests.integration.client import Answer, Question, ask, assert_refused
from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, attempts, serving, tier
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]
PROFILE: Json = {"name": "profile", "default": "Nothing is known."}
RECENT: Json = {"name": "recent", "level": "useful"}
WEATHER: Json = {"name": "weather", "level": "optional"}
ACCOUNT: Json = {"name": "account", "level": "critical"}
PATIENT: Json = {"timeout_s": 2.0}
QUESTION = Question(stream=False, tokens=8).with_(user="u1")


@pytest_asyncio.fixture(loop_scope="session")
async def redis() -> AsyncIterator[EmbeddedRedis]:
    server = EmbeddedRedis()
    await server.start()
    store = RedisStateStore(server.url, timeout_s=5.0)
    for name in ("profile", "recent", "weather", "account"):
        await store.put(f"features:{name}", "/u1", f"The {name} of u1.".encode(), ttl_s=600)
    await store.close()
    try:
        yield server
    finally:
        if server.pid:
            os.kill(server.pid, signal.SIGCONT)
        await server.stop()


def gateway_with(config: Path, engines: Engines, redis: EmbeddedRedis, *items: Json) -> Any:
    features = {"items": list(items)}
    return serving(config, tier("primary", *engines.primary), store=redis.url, features=features)


async def seen_by(engines: Engines, answer: Answer) -> str:
    (seen,) = await attempts(answer.request_id, *engines.primary)
    first = seen["json"]["messages"][0]
    assert first["role"] == "system"
    return str(first["content"])


async def test_the_model_is_told_all_of_them(engines: Engines, config: Path, redis: EmbeddedRedis) -> None:
    async with gateway_with(config, engines, redis, PROFILE, RECENT, WEATHER, ACCOUNT) as gateway:
        answer = await ask(gateway.url, QUESTION)
        assert answer.status == 200
        assert "x-given-up" not in answer.headers
        told = await seen_by(engines, answer)
        for name in ("profile", "recent", "weather", "account"):
            assert f'<data name="{name}">\nThe {name} of u1.\n</data>' in told
        assert await gateway.metric("graceway_features_total", source="fetched") == 4


TROUBLES = {"frozen": signal.SIGSTOP, "killed": signal.SIGKILL}


async def trouble(redis: EmbeddedRedis, name: str) -> None:
    if name == "frozen":
        os.kill(redis.pid, signal.SIGSTOP)
    else:
        await redis.stop()


@pytest.mark.parametrize("name", ["frozen", "killed"])
async def test_without_the_store_what_is_not_critical_goes_on_in_time(
    engines: Engines, config: Path, redis: EmbeddedRedis, name: str
) -> None:
    async with gateway_with(config, engines, redis, PROFILE, RECENT, WEATHER) as gateway:
        assert (await ask(gateway.url, QUESTION)).status == 200
        await trouble(redis, name)
        time = asyncio.get_running_loop().time
        begun = time()
        answers = [await ask(gateway.url, QUESTION) for _ in range(30)]
        # One timeout of the store for the first of them, and then hardly any: 30 answers of 16 ms each.
        assert time() - begun < 4.0
        for answer in answers:
            assert answer.status == 200
            lacking = "feature.profile=default, feature.recent=remembered, feature.weather=left_out"
            assert answer.headers["x-given-up"] == lacking
            assert "x-degraded" not in answer.headers
        told = await seen_by(engines, answers[-1])
        assert "Nothing is known." in told
        assert "The recent of u1." in told
        assert "weather" not in told
        assert await gateway.metric("graceway_features_total", feature="profile", source="default") == 30
        assert await gateway.metric("graceway_given_up_total", what="feature.weather") == 30
        shown = (await gateway.status())["models"]["chat"]["features_60s"]
        assert shown["recent/remembered"] == 30


@pytest.mark.parametrize("name", ["frozen", "killed"])
async def test_without_the_store_what_is_critical_is_refused_at_once(
    engines: Engines, config: Path, redis: EmbeddedRedis, name: str
) -> None:
    async with gateway_with(config, engines, redis, PROFILE, ACCOUNT) as gateway:
        assert (await ask(gateway.url, QUESTION)).status == 200
        await trouble(redis, name)
        for _ in range(5):
            answer = await ask(gateway.url, QUESTION)
            assert_refused(answer, 503, "no_tier")
            assert answer.headers["retry-after"] == "1"
            assert "the critical feature 'account'" in answer.json["error"]["message"]
        if name == "frozen":
            os.kill(redis.pid, signal.SIGCONT)
            await eventually(lambda: is_whole(gateway), 15.0)


async def is_whole(gateway: RunningGateway) -> bool:
    answer = await ask(gateway.url, QUESTION)
    return answer.status == 200 and "x-given-up" not in answer.headers


async def test_a_critical_feature_of_nobody_is_the_callers_mistake(
    engines: Engines, config: Path, redis: EmbeddedRedis
) -> None:
    async with gateway_with(config, engines, redis, ACCOUNT) as gateway:
        answer = await ask(gateway.url, Question(stream=False, tokens=8))
        assert answer.status == 400
        assert answer.json["error"]["param"] == "user"


async def test_a_cached_answer_is_for_the_user_it_was_made_for(
    engines: Engines, config: Path, redis: EmbeddedRedis
) -> None:
    cached = {"name": "cached", "backend": "cache"}
    tiers = [tier("primary", engines.a), cached]
    async with serving(config, *tiers, store=redis.url, features={"items": [PROFILE]}) as gateway:
        assert (await ask(gateway.url, QUESTION)).headers["x-served-tier"] == "primary"
        await engines.a.kill()
        assert (await ask(gateway.url, QUESTION)).headers["x-served-tier"] == "cached"
        assert_refused(await ask(gateway.url, QUESTION.with_(user="u2")), 503, "no_replica")
