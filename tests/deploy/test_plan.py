"""`graceway plan`: the formulas against enumeration and simulation, and the commands as an operator meets them."""

import json
import random
import struct
from itertools import product
from math import inf
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from deploy.cli import app
from deploy.plan_availability import (
    Domain,
    Recovery,
    at_least,
    availability,
    nines,
    outage_mtbf_h,
    replica_availability,
    spread,
)
from deploy.plan_capacity import Traffic, capacities
from replicas.mig.geometry import GEOMETRIES, GIB
from replicas.mig.need import Need, Slo, UnknownModel, capacity_of, kv_bytes_per_token
from tests.replicas.mig.test_discovery import Install, driver, h200

__all__ = ["driver"]

H200 = GEOMETRIES["H200-141GB"]
MINUTE = Recovery(20, 5, 30, 5)


def graceway(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


# --- availability ---------------------------------------------------------------------------------------------------


def test_recovery_is_the_sum_of_its_parts() -> None:
    assert MINUTE.total_s == 60
    assert replica_availability(1.0, MINUTE) == pytest.approx(60 / 61)


@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_one_of_k_is_the_well_known_formula(k: int) -> None:
    assert at_least(1, [Domain(k)], 0.9) == pytest.approx(1 - 0.1**k)


def by_enumeration(needed: int, domains: list[Domain], replica: float) -> float:
    """Every state of every domain and replica."""
    total = 0.0
    for domains_up in product([True, False], repeat=len(domains)):
        for up in product([True, False], repeat=sum(d.replicas for d in domains)):
            states, serving, probability = iter(up), 0, 1.0
            for domain, is_up in zip(domains, domains_up, strict=True):
                probability *= domain.availability if is_up else 1 - domain.availability
                for _ in range(domain.replicas):
                    alive = next(states)
                    probability *= replica if alive else 1 - replica
                    serving += alive and is_up
            total += probability * (serving >= needed)
    return total


@pytest.mark.parametrize("needed", [1, 2, 3])
@pytest.mark.parametrize("shape", [(3,), (2, 1), (1, 1, 1), (2, 2)])
def test_correlated_domains_against_every_state(needed: int, shape: tuple[int, ...]) -> None:
    domains = [Domain(n, 0.97 - 0.01 * i) for i, n in enumerate(shape)]
    assert at_least(needed, domains, 0.9) == pytest.approx(by_enumeration(needed, domains, 0.9))


def test_spreading_over_zones_is_what_saves_the_tier() -> None:
    together = at_least(1, spread(4, 1, 0.99), 0.99)
    apart = at_least(1, spread(4, 2, 0.99), 0.99)
    assert together < 0.9901
    assert apart > 0.9998
    assert [d.replicas for d in spread(5, 3, 1.0)] == [2, 2, 1]


def test_outages_come_as_often_as_in_a_simulation() -> None:
    mtbf_h, repair_h = 10.0, 1.0
    one = mtbf_h / (mtbf_h + repair_h)
    rng = random.Random(4)
    for needed, replicas in ((1, 2), (2, 3)):
        now, outages, up = 0.0, 0, replicas
        while now < 200_000:
            fail, repair = up / mtbf_h, (replicas - up) / repair_h
            now += rng.expovariate(fail + repair)
            if rng.random() * (fail + repair) < fail:
                outages += up == needed
                up -= 1
            else:
                up += 1
        assert outage_mtbf_h(needed, replicas, one, mtbf_h) == pytest.approx(now / outages, rel=0.05)
    assert outage_mtbf_h(0, 3, one, mtbf_h) == inf


def test_tiers_below_and_what_is_shared() -> None:
    alone = availability(10.0, Recovery(3600, 0, 0, 0), [Domain(1)])
    assert alone.tier == alone.service == pytest.approx(10 / 11)
    ladder = availability(10.0, Recovery(3600, 0, 0, 0), [Domain(1)], below=[0.9, 0.5], shared=0.999)
    assert ladder.service == pytest.approx((1 - (1 / 11) * 0.1 * 0.5) * 0.999)
    assert ladder.fleet_mtbf_h == 10.0


@pytest.mark.parametrize(
    ("share", "said"), [(0.999, "99.900 % (3.0 nines)"), (0.5, "50.00 % (0.3 nines)"), (1.0, "100 %")]
)
def test_nines_in_words(share: float, said: str) -> None:
    assert nines(share) == said


def test_the_command_says_it() -> None:
    result = graceway(
        "availability", "--replicas", "2", "--mtbf-h", "1", "--detect-s", "15", "--load-s", "30"
    )
    assert result.exit_code == 0
    assert "recovery    60 s (detect + restart + load + warm-up: 15 + 5 + 30 + 10)" in result.output
    assert "one replica 98.36 %" in result.output
    assert "the tier    99.97" in result.output
    wrong = graceway("availability", "--replicas", "2", "--needed", "3")
    assert wrong.exit_code == 2
    assert "3 of 2 replicas" in wrong.output


# --- what a model needs ---------------------------------------------------------------------------------------------


def a_config(layers: int, heads: int, hidden: int, **more: object) -> dict[str, object]:
    return {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": hidden, **more}


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        # Llama 3.1 8B: 2 × 32 layers × 8 heads × 128 × 2 bytes.
        (a_config(32, 32, 4096, num_key_value_heads=8, torch_dtype="bfloat16"), 131_072),
        # SmolLM2 135M.
        (a_config(30, 9, 576, num_key_value_heads=3, dtype="bfloat16"), 23_040),
        # A head size of its own, as Qwen3 has.
        (a_config(36, 32, 2560, num_key_value_heads=8, head_dim=128), 147_456),
        # No grouped heads, in 32 bits.
        (a_config(2, 4, 64, torch_dtype="float32"), 2 * 2 * 4 * 16 * 4),
        # DeepSeek's latent attention: 61 × (512 + 64) × 2.
        (a_config(61, 128, 7168, kv_lora_rank=512, qk_rope_head_dim=64), 70_272),
        # A vision model's text part.
        ({"torch_dtype": "bfloat16", "text_config": a_config(32, 32, 4096, num_key_value_heads=8)}, 131_072),
    ],
)
def test_kv_bytes_a_token_from_the_models_config(config: dict[str, object], bytes_per_token: int) -> None:
    assert kv_bytes_per_token(config) == bytes_per_token
    width = 4 if config.get("torch_dtype") == "float32" else 2
    assert kv_bytes_per_token(config, "fp8") == bytes_per_token // width


def test_a_config_that_does_not_say_is_refused() -> None:
    with pytest.raises(UnknownModel, match="num_attention_heads"):
        kv_bytes_per_token({"num_hidden_layers": 3})


def test_slots_follow_from_the_slices_memory() -> None:
    need = Need("8b", 16 * GIB, 131_072, 8192, 1)
    slots = {p.name: capacity_of(need, H200, p).slots for p in H200.compute_profiles}
    # 1 GiB a sequence, of 90 % less weights less 1 GiB.
    assert slots == {
        "1g.18gb": 0,
        "1g.35gb": 12,
        "2g.35gb": 12,
        "3g.71gb": 45,
        "4g.71gb": 45,
        "7g.141gb": 109,
    }


def test_slots_follow_from_the_slo_where_memory_is_plenty() -> None:
    need = Need("8b", 16 * GIB, 131_072, 8192, 1, Slo(itl_s=0.02))
    found = capacity_of(need, H200, H200.profiles["7g.141gb"])
    # 4.8 TB/s × 0.7 × 20 ms = 62.6 GiB: the weights and 46 sequences of 1 GiB.
    assert (found.slots, found.limited_by) == (46, "itl")
    assert found.weight == pytest.approx(46 / 0.02, rel=0.02)


# --- capacity -------------------------------------------------------------------------------------------------------


def test_capacity_keeps_littles_law() -> None:
    need = Need("8b", 16 * GIB, 131_072, 2048, 1, Slo(itl_s=0.1))
    rows = {row.profile: row for row in capacities(need, Traffic(20.0, 1500, 500), H200, utilization=0.75)}
    for row in rows.values():
        if row.replicas:
            offered = 20.0 * row.service_s
            assert (row.replicas - 1) * row.per_replica.slots * 0.75 < offered
            assert row.replicas * row.per_replica.slots * 0.75 >= offered - 1e-6
    assert rows["1g.18gb"].replicas == 0
    assert rows["3g.71gb"].gpus == -(-rows["3g.71gb"].replicas // 2)
    assert rows["1g.35gb"].replicas > rows["7g.141gb"].replicas


def test_the_capacity_command() -> None:
    traffic = ["--requests-per-s", "5", "--prompt-tokens", "1000", "--answer-tokens", "200"]
    result = graceway(
        "capacity", "--gpu", "h200", *traffic, "--weights-gib", "16", "--kv-bytes-per-token", "131072"
    )
    assert result.exit_code == 0, result.output
    assert "7g.141gb" in result.output
    assert graceway("capacity", "--gpu", "h200", *traffic).exit_code == 2
    unknown = graceway("capacity", "--gpu", "l4", *traffic, "--weights-gib", "1", "--kv-bytes-per-token", "9")
    assert unknown.exit_code == 2
    assert "no MIG table for l4" in unknown.output


# --- mig ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """A model as on disk: a config and half a gigabyte of weights that take no room."""
    folder = tmp_path / "chat"
    folder.mkdir()
    config = {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
    }
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", 2) + b"{}")
        file.truncate(16 * GIB)
    return folder


def a_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mig.yaml"
    path.write_text(text)
    return str(path)


def test_a_plan_from_a_models_folder(tmp_path: Path, model_folder: Path) -> None:
    file = a_file(
        tmp_path,
        f"""
gpu: h200
gpus: 8
models:
  - {{name: chat, model: {model_folder}, context_tokens: 8192, concurrency: 40, min_replicas: 2}}
  - {{name: small, weights_gib: 1.2, kv_bytes_per_token: 24576, context_tokens: 4096, concurrency: 50}}
current:
  - ["3g.71gb:4=chat"]
""",
    )
    result = graceway("mig", file)
    assert result.exit_code == 0, result.output
    assert "on 1 of 8 × H200-141GB" in result.output
    assert "0 running replicas disturbed" in result.output
    assert "nvidia-smi mig -i 0 -cgi " in result.output
    assert "stays" in result.output
    assert "-i 1 " not in result.output
    parted = graceway("mig", file, "--mig-parted")
    assert parted.output.startswith("version: v1\nmig-configs:\n  graceway:\n    - devices: [0]")


def one_model(gpu: str = "h200", weights_gib: int = 1, **top: str) -> str:
    model = (
        f"{{name: a, weights_gib: {weights_gib}, kv_bytes_per_token: 9, context_tokens: 1, concurrency: 1}}"
    )
    return "".join(f"{k}: {v}\n" for k, v in {"gpu": gpu, "models": f"[{model}]", **top}.items())


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        (
            "gpu: h200\nmodels:\n  - {name: a, context_tokens: 1, concurrency: 1, concurency: 2}\n",
            2,
            "mig.yaml:3",
        ),
        (
            "gpu: h200\nmodels:\n  - {name: a, context_tokens: 1, concurrency: 1}\n",
            2,
            "a has neither `model`",
        ),
        (one_model(gpu="l4"), 2, "no MIG table for l4"),
        (one_model(weights_gib=300), 1, "a fits no slice of H200-141GB"),
        (one_model(current="[[nonsense]]"), 2, "`current` takes slices such as"),
        (one_model(current="[['2g.35gb:1=a']]"), 1, "2g.35gb can't start at 1"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, status: int, said: str) -> None:
    result = graceway("mig", a_file(tmp_path, text))
    assert said in result.output
    assert result.exit_code == status


def test_a_missing_file_is_said() -> None:
    result = graceway("mig", "/no/such/file.yaml")
    assert result.exit_code == 2
    assert "/no/such/file.yaml" in result.output


def test_what_ray_is_told_of_a_node(driver: Install) -> None:
    driver(h200(), h200())
    done = graceway("resources")
    assert done.exit_code == 0
    assert json.loads(done.output) == {"mig-1g.18gb": 8.0, "mig-3g.71gb": 2.0}
