"""What an engine is, and the command line and environment that start its server."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from replicas.kv.settings import NO_KV, URL_VARIABLE, KvSettings, arguments
from replicas.kv_events import replay_of

EngineKind = Literal["vllm", "llamacpp", "command"]

# Longest sequence that a slot is given room for unless the spec says otherwise.
DEFAULT_SLOT_TOKENS = 2048
# vLLM's CPU backend wants multiples of 32, and its own choice of 128 would have short prompts share nothing.
_CPU_BLOCK_TOKENS = 32
_CPU_KV_CACHE_GIB = 1


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One engine server as its supervisor starts it; `served_model` is the name that it answers to.

    `gpu` is the share or number of GPUs, 0 for the CPU. Kind `command` starts any other server: `argv` with
    `{port}`, `{host}`, `{model}`, `{served_model}` and `{slots}` filled in.
    """

    kind: EngineKind
    model: str
    served_model: str
    slots: int
    gpu: float = 0.0
    max_model_len: int | None = None
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    kv_events: str = ""
    """The ZeroMQ endpoint at which it tells what its prefix cache holds; empty: it does not."""
    api_key: str | None = field(default=None, repr=False)
    kv: KvSettings = NO_KV
    """What becomes of vLLM's KV blocks."""
    kv_url: str = field(default="", repr=False)
    """The Redis in which they are kept."""


def command(spec: EngineSpec, port: int, host: str = "127.0.0.1") -> list[str]:
    """The command that serves `spec` on `host`:`port`."""
    if spec.kind == "vllm":
        return _vllm(spec, port, host)
    if spec.kind == "llamacpp":
        return _llamacpp(spec, port, host)
    places = {"port": port, "host": host, "model": spec.model, "served_model": spec.served_model}
    places |= {"kv_events": spec.kv_events}
    return [*(part.format(**places, slots=spec.slots) for part in spec.argv), *spec.extra_args]


_KV_EVENTS = "--kv-events-config"


def tells_kv_events(spec: EngineSpec) -> bool:
    """Whether it can be asked to tell what its prefix cache holds, and nobody else has asked already."""
    if spec.kind == "vllm":
        return not any(arg.startswith(_KV_EVENTS) for arg in spec.extra_args)
    return any("{kv_events}" in part for part in spec.argv)


def environment(spec: EngineSpec, base: Mapping[str, str], cores: int = 1) -> dict[str, str]:
    """The whole environment of its process: `base`, what the engine needs, and what the spec says, the last
    first.
    """
    needed = _vllm_environment(spec, base, cores) if spec.kind == "vllm" else {}
    if spec.api_key is not None:
        # Not on the command line, where every user of the machine could read it.
        needed |= {"VLLM_API_KEY": spec.api_key, "GRACEWAY_ENGINE_API_KEY": spec.api_key}
    if spec.kv_url:
        needed[URL_VARIABLE] = spec.kv_url
    return {**base, **needed, **spec.env}


def _vllm(spec: EngineSpec, port: int, host: str) -> list[str]:
    is_on_cpu = spec.gpu == 0
    module = "replicas.vllm_server" if is_on_cpu else "vllm.entrypoints.openai.api_server"
    return [
        *(sys.executable, "-m", module),
        *("--host", host, "--port", str(port)),
        *("--model", spec.model, "--served-model-name", spec.served_model),
        *("--max-num-seqs", str(spec.slots)),
        *_longest(spec),
        *_kv_events(spec),
        "--disable-uvicorn-access-log",
        *(_ON_CPU if is_on_cpu else _gpu_share(spec.gpu)),
        *arguments(spec.kv),
        *spec.extra_args,
    ]


def _kv_events(spec: EngineSpec) -> tuple[str, ...]:
    if not spec.kv_events:
        return ()
    asked = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": spec.kv_events}
    asked |= {"replay_endpoint": replay_of(spec.kv_events)}
    return (_KV_EVENTS, json.dumps(asked))


def _longest(spec: EngineSpec) -> tuple[str, ...]:
    # On a GPU, vLLM knows best what fits.
    longest = spec.max_model_len or (DEFAULT_SLOT_TOKENS if spec.gpu == 0 else None)
    return () if longest is None else ("--max-model-len", str(longest))


# Compiling takes minutes and a C++ compiler, to save a tenth of a token's time.
_ON_CPU = ("--enforce-eager", "--block-size", str(_CPU_BLOCK_TOKENS))


def _gpu_share(gpu: float) -> tuple[str, ...]:
    if gpu >= 1:
        return ("--tensor-parallel-size", str(int(gpu)))
    # vLLM measures the share against the whole device; a tenth stays free for what it does not count.
    return ("--gpu-memory-utilization", f"{0.9 * gpu:.3f}")


def _vllm_environment(spec: EngineSpec, base: Mapping[str, str], cores: int) -> dict[str, str]:
    needed = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if Path(spec.model).exists():
        needed |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if spec.gpu == 0:
        needed |= {
            "VLLM_CPU_KVCACHE_SPACE": str(_CPU_KV_CACHE_GIB),
            # vLLM would bind each engine's threads to the same first cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # More than half of the cores made it no faster, with a gateway and a second engine beside it.
            "OMP_NUM_THREADS": str(max(1, cores // 2)),
            # Waiting threads sleep at once: spinning, they starve the engine next to them.
            "OMP_WAIT_POLICY": "PASSIVE",
            "KMP_BLOCKTIME": "0",
            # Even eagerly it would compile what ranks log probabilities, at the first request that asks for any and
            # within the engine's loop: up to a minute in which nobody gets a token, and it looks hung.
            "TORCHDYNAMO_DISABLE": "1",
        }
    return needed | {name: base[name] for name in _THE_OPERATORS if name in base}


# Where the operator has set one of these, that stands.
_THE_OPERATORS = ("OMP_NUM_THREADS", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")


def _llamacpp(spec: EngineSpec, port: int, host: str) -> list[str]:
    return [
        *(sys.executable, "-m", "replicas.llamacpp_server"),
        *("--host", host, "--port", str(port)),
        *("--model", spec.model, "--served-model", spec.served_model),
        *("--slots", str(spec.slots)),
        *("--slot-tokens", str(spec.max_model_len or DEFAULT_SLOT_TOKENS)),
        *spec.extra_args,
    ]
