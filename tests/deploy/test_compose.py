"""From a tier of the config to the engine that serves it."""

import pytest
from redis import Redis

from deploy.compose import engine_spec, store_address
from deploy.config import Config, Model, Tier
from gateway.specs import KvSpec
from replicas.kv.settings import KvSettings


def tier(**more: object) -> Tier:
    return Tier.model_validate({"name": "t", "backend": "vllm", "model": "m", **more})


def test_a_tier_that_keeps_no_blocks_needs_no_store() -> None:
    engine = engine_spec("chat", tier(), "redis://:secret@h")
    assert (engine.kv.strategy, engine.kv_url) == ("recompute", "")


@pytest.mark.parametrize("strategy", ["checkpoint", "replicate", "sync"])
def test_the_others_have_the_store_s_address(strategy: str) -> None:
    engine = engine_spec("chat", tier(kv={"strategy": strategy, "budget_bytes": 1 << 20}), "redis://h")
    assert (engine.kv.strategy, engine.kv.budget_bytes, engine.kv_url) == (strategy, 1 << 20, "redis://h")


def test_each_tier_s_blocks_have_a_budget_and_a_time_of_their_own() -> None:
    kept = tier(kv={"strategy": "replicate"})
    assert [engine_spec(model, kept, "redis://h").kv.pool for model in ("a", "b")] == ["a/t", "b/t"]


@pytest.mark.parametrize(
    "more", [{"backend": "llamacpp"}, {"backend": "command", "command": ["x"]}, {"backend": "canned"}]
)
def test_nothing_is_said_of_blocks_that_a_backend_can_t_keep(more: dict[str, object]) -> None:
    other = tier(kv={"strategy": "sync"}, served_model="m", **more)
    assert other.for_gateway().kv == KvSpec()
    assert engine_spec("a", other, "redis://h").kv_url == ""


async def test_an_embedded_store_has_room_for_the_blocks_of_all_tiers() -> None:
    kept, other = (tier(name=name, kv={"strategy": "replicate", "budget_bytes": 400 << 20}) for name in "ab")
    unkept = tier(name="c", backend="llamacpp", kv={"strategy": "replicate"})
    async with store_address(Config(models={"chat": Model(tiers=(kept, other, unkept))})) as url:
        with Redis.from_url(url) as redis:
            assert redis.config_get("maxmemory") == {"maxmemory": str((256 + 1000) << 20)}


def test_an_engine_s_defaults_are_the_config_s() -> None:
    assert KvSettings(**KvSpec(strategy="replicate").model_dump()) == KvSettings()
