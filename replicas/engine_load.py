"""What an engine has to do and has done, read from its own metrics."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp

# vLLM's names (the simulated engine's too), then llama.cpp's.
_RUNNING = ("vllm:num_requests_running", "llamacpp:requests_processing")
_WAITING = ("vllm:num_requests_waiting", "llamacpp:requests_deferred")
# Prompts are not counted: a hung engine may still take them in.
_PROGRESS = (
    "vllm:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
    "llamacpp:n_decode_total",
)
_KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "llamacpp:kv_cache_usage_ratio")
# Of Graceway's own connector in vLLM.
_RESTORED, _RECOMPUTED = "graceway_kv_restore_total", "graceway_kv_recompute_total"
_BANDWIDTH, _PREFILL = "graceway_kv_bandwidth_bytes_per_s", "graceway_kv_prefill_tokens_per_s"
_RESTORING = (_RESTORED, _RECOMPUTED, _BANDWIDTH, _PREFILL)
_KNOWN = "|".join((*_RUNNING, *_WAITING, *_PROGRESS, *_KV_USE, *_RESTORING))
# What is of no interest here is by far the most of it, and is passed over at the speed of a search.
_SAMPLE = re.compile(rf"\n({_KNOWN})(?:\{{[^}}]*\}})?[ \t]+([-+.0-9eE]+)")


@dataclass(frozen=True, slots=True)
class Restoring:
    """How an engine whose KV blocks are kept decides between loading and computing them, and on what ground."""

    restored: int
    """Requests whose blocks were loaded."""
    recomputed: int
    """Requests whose blocks were computed, though they were there."""
    bandwidth_bytes_per_s: float
    """As it was measured; 0 before the first time, as is the other."""
    prefill_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Sequences an engine has, and a count that grows whenever it gets on with them."""

    running: int
    waiting: int
    progress: float
    as_of: float
    """Unix time of the reading."""
    kv_use: float | None = None
    """The part of its KV cache that is in use, 0 to 1; None where it doesn't say."""
    restoring: Restoring | None = None
    """None where its blocks are not kept."""

    @property
    def is_idle(self) -> bool:
        return self.running == 0 and self.waiting == 0


def parse_load(exposition: str, as_of: float) -> EngineLoad | None:
    """The load in a Prometheus exposition; None when it holds none of the metrics that tell it."""
    totals: dict[str, float] = {}
    samples = _SAMPLE.findall("\n" + exposition)
    for name, value in samples:
        totals[name] = totals.get(name, 0.0) + float(value)
    if not any(name in totals for name in _RUNNING):
        return None

    def total(names: tuple[str, ...]) -> float:
        return sum(totals.get(name, 0.0) for name in names)

    # Of several engines behind one server the fullest counts.
    uses = [float(value) for name, value in samples if name in _KV_USE]
    return EngineLoad(
        int(total(_RUNNING)),
        int(total(_WAITING)),
        total(_PROGRESS),
        as_of,
        max(uses, default=None),
        _restoring(totals),
    )


def _restoring(totals: Mapping[str, float]) -> Restoring | None:
    if not any(name in totals for name in _RESTORING):
        return None
    restored, recomputed, bandwidth, prefill = (totals.get(name, 0.0) for name in _RESTORING)
    return Restoring(int(restored), int(recomputed), bandwidth, prefill)


async def read_load(
    session: aiohttp.ClientSession,
    url: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 2.0,
    wall: Callable[[], float] = time.time,
) -> EngineLoad | None:
    """The load of the engine at `url`; None when it gives none in time."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.get(url + "/metrics", headers=headers, allow_redirects=False) as response,
        ):
            return parse_load(await response.text(), wall()) if response.status == 200 else None
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None
