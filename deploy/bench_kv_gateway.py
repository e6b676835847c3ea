"""A gateway of its own for the benches of KV blocks: `graceway serve` over engines that already run."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

READY_WITHIN_S = 60.0


@asynccontextmanager
async def running_gateway(urls: Sequence[str], folder: Path) -> AsyncIterator[str]:
    """Its address. Its model `chat` is what the engines at `urls` call `m`."""
    path = folder / "gateway.yaml"
    path.write_text(json.dumps(_config(urls)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy", "serve", "-c", str(path)), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield await asyncio.wait_for(_ready(process), READY_WITHIN_S)
    finally:
        process.terminate()
        await process.wait()


def _config(urls: Sequence[str]) -> object:
    tier = {
        "name": "primary",
        "backend": "openai",
        "served_model": "m",
        "slots": 4,
        "slo": {"ttft_s": 60.0, "itl_s": 5.0},
        "replicas": [{"url": url} for url in urls],
        "probe": None,
    }
    return {
        "server": {"port": 0},
        "state_store": {"url": "memory"},
        "health": {"interval_s": 1.0, "timeout_s": 10.0},
        "models": {"chat": {"tiers": [tier]}},
    }


async def _ready(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    while line := (await process.stdout.readline()).decode():
        if line.startswith("ready "):
            return line.split()[1]
    raise RuntimeError("the gateway did not start")
