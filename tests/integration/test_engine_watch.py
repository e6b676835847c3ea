"""What engines say of their KV caches reaches the ladder."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.client import Question, ask, assert_whole
from tests.integration.rig import serving, tier
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_filling_kv_cache_is_seen(config: Path) -> None:
    question = Question(tokens=150)
    async with (
        EngineProcess(token_ms=20, kv_blocks=40) as engine,
        serving(config, tier("primary", engine)) as gateway,
    ):
        streams = [asyncio.ensure_future(ask(gateway.url, question)) for _ in range(4)]

        async def is_seen() -> bool:
            return await gateway.metric("graceway_tier_signal", tier="primary", signal="kv") > 0.2

        await eventually(is_seen)
        said = (await gateway.replicas())[engine.url]["engine"]
        assert said["kv_use"] > 0.2
        assert said["from_elsewhere"] == 0
        assert said["age_s"] < 10
        for answer in await asyncio.gather(*streams):
            assert_whole(question, answer)
