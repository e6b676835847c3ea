"""How an engine is told: on its command line, and where that would be read by others, in its environment."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from replicas.engines import EngineSpec, command, environment
from replicas.kv.fingerprint import fingerprint, folder_of, weights_digest
from replicas.kv.settings import (
    KvSettings,
    Strategy,
    arguments,
    received,
    unknown,
    url_of,
    why_none,
    why_unknown,
)

SPEC = EngineSpec("vllm", "m", "m", slots=1)


def test_without_a_strategy_an_engine_is_started_as_ever() -> None:
    assert arguments(KvSettings("recompute")) == ()
    assert "--kv-transfer-config" not in command(SPEC, 1)


def test_what_is_sent_is_what_arrives() -> None:
    settings = KvSettings("sync", 5, 6.0, "lz4", 3)
    flag, sent = arguments(settings)
    config = json.loads(sent)
    assert flag == "--kv-transfer-config"
    assert config["kv_load_failure_policy"] == "recompute"
    assert received({**config["kv_connector_extra_config"], "newer": 1}) == settings


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"strategy": "replicat"}, "strategy is 'replicat': Input should be 'recompute', 'checkpoint'"),
        ({"compression": "zstd"}, "compression is 'zstd': Input should be 'none', 'lz4'"),
        ({"budget_bytes": "4GB"}, "budget_bytes is '4GB': Input should be a valid integer"),
        ({"connections": 0}, "connections is 0: Input should be greater than or equal to 1"),
        ({"ttl_s": 1e300}, "ttl_s is 1e"),
        ({"ttl_s": 0, "connections": 2.5}, "ttl_s is 0: .*; connections is 2.5"),
    ],
)
def test_what_can_t_be_meant_is_refused_by_name(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=f"kv_connector_extra_config: {why}"):
        received(wrong)


def test_a_key_that_says_nothing_is_told() -> None:
    assert unknown({"strategy": "sync", "budget": 5}) == ["budget"]


@pytest.mark.parametrize(
    ("strategy", "url", "why"),
    [("recompute", "redis://h", "recompute"), ("sync", "", "GRACEWAY_KV_URL"), ("sync", "redis://h", "^$")],
)
def test_nothing_is_kept_without_an_address_or_by_a_strategy_that_keeps_nothing(
    strategy: Strategy, url: str, why: str
) -> None:
    assert re.search(why, why_none(KvSettings(strategy), url))


@pytest.mark.parametrize(
    ("algorithm", "seed", "why"),
    [("sha256", {}, "^$"), ("xxhash", {}, "PYTHONHASHSEED"), ("xxhash_cbor", {"PYTHONHASHSEED": "0"}, "^$")],
)
def test_names_that_no_other_process_knows_are_of_no_use(
    algorithm: str, seed: dict[str, str], why: str
) -> None:
    assert re.search(why, why_unknown(algorithm, seed))


def test_an_address_that_is_none_is_refused_with_its_variable() -> None:
    with pytest.raises(ValueError, match=r"GRACEWAY_KV_URL: .*is none of redis://"):
        url_of({"GRACEWAY_KV_URL": "http://cache"})


def test_vllm_s_own_tier_in_host_memory_is_above_redis() -> None:
    settings = KvSettings("replicate", host_memory_bytes=1 << 30)
    config = json.loads(arguments(settings)[1])
    assert config["kv_connector"] == "MultiConnector"
    first, second = config["kv_connector_extra_config"]["connectors"]
    assert first["kv_connector"] == "OffloadingConnector"
    assert first["kv_connector_extra_config"] == {"cpu_bytes_to_use": 1 << 30}
    assert second == json.loads(arguments(replace(settings, host_memory_bytes=0))[1]) | {
        "kv_connector_extra_config": second["kv_connector_extra_config"]
    }
    assert received(second["kv_connector_extra_config"]) == settings
    assert json.loads(arguments(replace(settings, strategy="recompute"))[1]) == first


def test_the_password_is_in_the_environment_alone() -> None:
    spec = EngineSpec("vllm", "m", "m", 1, kv=KvSettings(), kv_url="redis://:secret@cache")
    assert "secret" not in " ".join(command(spec, 1)) + repr(spec)
    assert url_of(environment(spec, {})) == "redis://:secret@cache"
    assert url_of(environment(SPEC, {})) == ""


def test_a_fingerprint_is_of_all_facts_in_any_order() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1, "b": 2}) != fingerprint({"a": 1, "b": 3})
    assert len(fingerprint({})) == 16


@pytest.mark.parametrize("at", [0, 700_000, 1_900_000])
def test_other_weights_of_the_same_name_and_size_are_told_apart(tmp_path: Path, at: int) -> None:
    weights, plain = tmp_path / "model.safetensors", bytearray(2_000_000)
    weights.write_bytes(plain)
    before = weights_digest(str(tmp_path))
    assert weights_digest(str(tmp_path)) == before
    plain[at : at + 100_000] = b"x" * len(plain[at : at + 100_000])
    weights.write_bytes(plain)
    assert weights_digest(str(tmp_path)) != before


def test_a_hub_s_model_is_the_weights_that_were_loaded(tmp_path: Path) -> None:
    def digest_at(commit: str) -> str:
        """Of a cache in which the branch is at `commit`."""
        kept = tmp_path / commit / "models--org--model"
        snapshot = kept / "snapshots" / commit
        (kept / "refs").mkdir(parents=True)
        (kept / "refs" / "main").write_text(commit)
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
        (snapshot / "model.safetensors").write_bytes(commit.encode())
        return weights_digest(folder_of("org/model", None, str(tmp_path / commit)))

    assert digest_at("a" * 40) != digest_at("b" * 40) != ""


@pytest.mark.parametrize("model", ["org/unknown", "s3://bucket/some/model"])
def test_a_name_that_no_cache_knows_stays_one(model: str, tmp_path: Path) -> None:
    assert folder_of(model, None, str(tmp_path)) == model


def test_a_model_that_is_no_folder_has_its_name_alone() -> None:
    assert weights_digest("an-org/a-model") == ""
