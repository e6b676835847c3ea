"""From a tier of the config to the engine that serves it."""

import pytest

from deploy.compose import engine_spec
from deploy.config import Tier
from gateway.specs import KvSpec
from replicas.kv.settings import KvSettings


def tier(**more: object) -> Tier:
    return Tier.model_validate({"name": "t", "backend": "vllm", "model": "m", **more})


def test_a_tier_that_keeps_no_blocks_needs_no_store() -> None:
    engine = engine_spec(tier(), "redis://:secret@h")
    assert (engine.kv.strategy, engine.kv_url) == ("recompute", "")


@pytest.mark.parametrize("strategy", ["checkpoint", "replicate", "sync"])
def test_the_others_have_the_store_s_address(strategy: str) -> None:
    engine = engine_spec(tier(kv={"strategy": strategy, "budget_bytes": 1 << 20}), "redis://h")
    assert (engine.kv.strategy, engine.kv.budget_bytes, engine.kv_url) == (strategy, 1 << 20, "redis://h")


def test_an_engine_s_defaults_are_the_config_s() -> None:
    assert KvSettings(**KvSpec(strategy="replicate").model_dump()) == KvSettings()
