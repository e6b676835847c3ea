"""What a model needs of a slice, and what a slice then gives: sequences at once, cached tokens, weight in routing.

KV bytes a token come from the model's own `config.json`; the time of a step is a roofline, which assumes that
decoding reads all weights and the batch's cached tokens once a step, and that prefill is bound by arithmetic.
Shares of the peak that engines reach are arguments, to be replaced by what was measured.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from replicas.mig.geometry import GIB, MEMORY_SLICES, Geometry, Profile

Json: TypeAlias = Mapping[str, Any]
_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


class UnknownModel(ValueError):  # noqa: N818 - names what is missing
    """A model folder or config that does not say what a plan needs."""


def kv_bytes_per_token(config: Json, kv_dtype: str = "auto") -> int:
    """Bytes of KV cache for one token over all layers, from a Hugging Face `config.json`.

    2 (key and value) × layers × KV heads × head size × bytes; with multi-head latent attention (DeepSeek), layers ×
    (latent rank + rotary part) × bytes. `kv_dtype` is the engine's `--kv-cache-dtype`; `auto` is the model's own.
    Every layer is counted as full attention, so a model with sliding windows needs less than this.
    """
    text: Json = config.get("text_config") or config
    try:
        layers = int(text["num_hidden_layers"])
        width_bytes = _DTYPE_BYTES[_dtype(config) if kv_dtype == "auto" else kv_dtype]
        if text.get("kv_lora_rank"):
            return layers * (int(text["kv_lora_rank"]) + int(text["qk_rope_head_dim"])) * width_bytes
        heads = int(text["num_attention_heads"])
        kv_heads = int(text.get("num_key_value_heads") or heads)
        head_size = int(text.get("head_dim") or int(text["hidden_size"]) // heads)
    except KeyError as missing:
        raise UnknownModel(f"config.json does not say {missing}") from None
    return 2 * layers * kv_heads * head_size * width_bytes


def _dtype(config: Json) -> str:
    text: Json = config.get("text_config") or {}
    named = config.get("torch_dtype") or config.get("dtype") or text.get("torch_dtype") or text.get("dtype")
    return str(named or "bfloat16").removeprefix("torch.")


def weight_bytes(folder: Path) -> int:
    """Bytes of a model's weights on disk, which is what they take in memory unless the engine quantizes them."""
    sizes = [file.stat().st_size for file in folder.glob("*.safetensors")]
    if not sizes:
        raise UnknownModel(f"{folder} holds no *.safetensors")
    return sum(sizes)


def config_of(folder: Path) -> Json:
    """The model's `config.json`."""
    try:
        return dict(json.loads((folder / "config.json").read_text()))
    except (OSError, ValueError) as error:
        raise UnknownModel(f"{folder}/config.json can't be read: {error}") from None


@dataclass(frozen=True, slots=True)
class Slo:
    """What one request is promised on a slice."""

    itl_s: float = inf
    """Between two tokens of a sequence, with all slots taken."""
    ttft_s: float = inf
    """To the first token of a prompt that finds a free slot."""


@dataclass(frozen=True, slots=True)
class Need:
    """A model with the load it is to carry."""

    name: str
    weights_bytes: int
    kv_bytes_per_token: int
    context_tokens: int
    """Prompt and answer of one sequence together."""
    concurrency: int
    """Sequences at once, over all replicas."""
    slo: Slo = Slo()
    prompt_tokens: int = 0
    """Of which must be prefilled for the first token; 0 leaves `ttft_s` unchecked."""
    active_weights_bytes: int | None = None
    """What one token reads of the weights, where that is less than all (mixture of experts)."""
    min_replicas: int = 1

    @property
    def read_bytes(self) -> int:
        return self.weights_bytes if self.active_weights_bytes is None else self.active_weights_bytes


@dataclass(frozen=True, slots=True)
class Reach:
    """How much of a slice an engine makes use of."""

    memory: float = 0.9
    """vLLM's `--gpu-memory-utilization`."""
    overhead_bytes: int = GIB
    """CUDA context, graphs and activations."""
    bandwidth: float = 0.7
    flops: float = 0.5
    bytes_per_weight: float = 2.0
    """To count weights from their bytes, for the arithmetic of a token (2 operations a weight)."""


@dataclass(frozen=True, slots=True)
class SliceCapacity:
    """What one replica on one slice carries."""

    profile: str
    slots: int
    kv_tokens: int
    weight: float
    """Decode tokens a second with all slots taken: how routing weighs this replica against others of its tier."""
    limited_by: str
    """`weights`, `memory`, `itl` or `ttft`."""


DEFAULT_REACH = Reach()


def capacity_of(
    need: Need, geometry: Geometry, profile: Profile, reach: Reach = DEFAULT_REACH
) -> SliceCapacity:
    """What a replica of this model carries on a slice of that profile; no slots when it does not fit or is too slow."""
    kv_bytes = int(profile.memory_bytes * reach.memory) - need.weights_bytes - reach.overhead_bytes
    kv_tokens = max(0, kv_bytes // need.kv_bytes_per_token)
    by_memory = kv_tokens // need.context_tokens
    if by_memory == 0:
        return SliceCapacity(profile.name, 0, kv_tokens, 0.0, "weights")
    if need.prompt_tokens and prefill_s(need, geometry, profile, reach) > need.slo.ttft_s:
        return SliceCapacity(profile.name, 0, kv_tokens, 0.0, "ttft")
    slots = _slots_in_time(need, geometry, profile, reach, by_memory)
    weight = slots / step_s(need, slots, geometry, profile, reach) if slots else 0.0
    return SliceCapacity(profile.name, slots, kv_tokens, weight, "memory" if slots == by_memory else "itl")


def step_s(need: Need, batch: int, geometry: Geometry, profile: Profile, reach: Reach) -> float:
    """One decoding step of `batch` sequences of full context: the longer of reading and computing."""
    read = need.read_bytes + batch * need.context_tokens * need.kv_bytes_per_token
    bandwidth = geometry.bandwidth_bytes_per_s * profile.memory_slices / MEMORY_SLICES * reach.bandwidth
    return max(read / bandwidth, batch * _token_flops(need, reach) / _flops(geometry, profile, reach))


def prefill_s(need: Need, geometry: Geometry, profile: Profile, reach: Reach) -> float:
    """The prompt of one request, alone on the slice."""
    return need.prompt_tokens * _token_flops(need, reach) / _flops(geometry, profile, reach)


def _slots_in_time(need: Need, geometry: Geometry, profile: Profile, reach: Reach, most: int) -> int:
    """The largest batch up to `most` whose step keeps the SLO; a step only grows with its batch."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if step_s(need, middle, geometry, profile, reach) <= need.slo.itl_s:
            low = middle
        else:
            high = middle - 1
    return low


def _token_flops(need: Need, reach: Reach) -> float:
    return 2 * need.read_bytes / reach.bytes_per_weight


def _flops(geometry: Geometry, profile: Profile, reach: Reach) -> float:
    return geometry.flops_per_s * profile.sms / geometry.sms * reach.flops
