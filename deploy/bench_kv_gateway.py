"""A gateway of its own for the benches of KV blocks: `graceway serve` over engines that already run."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from deploy.bench_kv_rig import Bench

READY_WITHIN_S = 60.0
STATUS_WITHIN_S = 10.0
"""Many times as long as a gateway takes to read its engines' metrics."""


@asynccontextmanager
async def running_gateway(bench: Bench, budget_bytes: int) -> AsyncIterator[str]:
    """Its address. Its model `chat` is what the bench's engines call `m`; what outlives them is in the bench's Redis."""
    path = bench.folder / "gateway.yaml"
    kv = {"strategy": "replicate", "budget_bytes": budget_bytes}
    path.write_text(json.dumps(_config([engine.url for engine in bench.engines], bench.redis_url, kv)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy", "serve", "-c", str(path)), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield await asyncio.wait_for(_ready(process), READY_WITHIN_S)
    finally:
        process.terminate()
        await process.wait()


async def until_ready(http: aiohttp.ClientSession, gateway: str, replicas: int) -> None:
    """Returns once the gateway takes so many of its replicas for ready."""
    async with asyncio.timeout(READY_WITHIN_S):
        while await _ready_replicas(http, gateway) < replicas:  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(0.1)


async def until_restored(http: aiohttp.ClientSession, gateway: str, replica: str, requests: int) -> bool:
    """Whether the gateway's status tells in a while that so many requests had their blocks loaded there."""
    try:
        async with asyncio.timeout(STATUS_WITHIN_S):
            while await _restored(http, gateway, replica) < requests:  # noqa: ASYNC110 - another process's
                await asyncio.sleep(0.1)
    except TimeoutError:
        return False
    return True


async def _restored(http: aiohttp.ClientSession, gateway: str, replica: str) -> int:
    (engine,) = [r["engine"] for r in await _replicas(http, gateway) if r["replica"] == replica]
    restoring = (engine or {}).get("kv_restoring") or {}
    return int(restoring.get("restored", 0))


async def _ready_replicas(http: aiohttp.ClientSession, gateway: str) -> int:
    return sum(replica["state"] == "ready" for replica in await _replicas(http, gateway))


async def _replicas(http: aiohttp.ClientSession, gateway: str) -> list[dict[str, Any]]:
    async with http.get(f"{gateway}/status") as answer:
        (model,) = (await answer.json())["models"].values()
    return [replica for tier in model["tiers"] for replica in tier["replicas"]]


def _config(urls: list[str], store_url: str, kv: dict[str, object]) -> object:
    tier = {
        "name": "primary",
        "backend": "openai",
        "served_model": "m",
        "slots": 4,
        "slo": {"ttft_s": 60.0, "itl_s": 5.0},
        "replicas": [{"url": url} for url in urls],
        "probe": None,
        "kv": kv,
    }
    return {
        "server": {"port": 0},
        "state_store": {"url": store_url},
        "health": {"interval_s": 1.0, "timeout_s": 10.0},
        "models": {"chat": {"tiers": [tier]}},
    }


async def _ready(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if line.startswith("ready "):
            return line.split()[1]
    raise RuntimeError("the gateway did not start")
