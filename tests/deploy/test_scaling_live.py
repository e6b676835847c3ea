"""Tiers that grow and shrink on Ray, with simulated engines: no request fails and no stream breaks on the way."""

import asyncio
import json
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.deploy.test_up import ROOT, System, until
from tests.rig import free_port

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(400)]

TOKENS = 40
ENGINE = [
    *(sys.executable, "-m", "loadtests.engine", "--host", "{host}", "--port", "{port}"),
    *("--served-model", "{served_model}", "--slots", "{slots}", "--token-ms", "20"),
]


def config_text(scale: str, extra: str = "") -> str:
    return f"""
server: {{host: 127.0.0.1, port: 8000}}
models:
  chat:
    tiers:
      - name: primary
        backend: command
        command: {json.dumps(ENGINE)}
        served_model: m
        slots: 4
        scale: {scale}
        slo: {{ttft_s: 30.0, itl_s: 0.5}}     # who comes before the replicas do waits for them
        environment: {{PYTHONPATH: "{ROOT}"{extra}}}
"""


@dataclass
class Load:
    """Streams at a rate that may change, and how each ended."""

    url: str
    per_s: float
    whole: int = 0
    refused: int = 0
    """With 429, before anything began: as honest as the step is steep."""
    failed: list[str] = field(default_factory=list)

    async def run(self, until_set: asyncio.Event) -> None:
        rng, under_way = random.Random(1), set()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:
            while not until_set.is_set():
                under_way.add(asyncio.create_task(self._stream(http)))
                await asyncio.sleep(rng.expovariate(self.per_s))
            await asyncio.gather(*under_way)

    async def _stream(self, http: aiohttp.ClientSession) -> None:
        body = {"model": "chat", "messages": [{"role": "user", "content": "Count."}], "stream": True}
        try:
            async with http.post(
                f"{self.url}/v1/chat/completions", json=body | {"max_tokens": TOKENS}
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failed.append(repr(error))
            return
        events = [line for line in text.splitlines() if line.startswith("data: ")]
        is_whole = answer.status == 200 and events[-1:] == ["data: [DONE]"] and len(events) >= TOKENS
        if is_whole:
            self.whole += 1
        elif answer.status == 429 and "retry-after" in answer.headers:
            self.refused += 1
        else:
            self.failed.append(f"{answer.status} {text[-300:]}")


async def ready_replicas(url: str) -> int:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/status") as answer:
        status = await answer.json()
    (tier,) = status["models"]["chat"]["tiers"]
    return sum(replica["state"] == "ready" for replica in tier["replicas"])


async def until_ready_replicas(url: str, count: int, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while await ready_replicas(url) != count:  # noqa: ASYNC110 - it changes in another process
            await asyncio.sleep(0.25)


def started(folder: Path, text: str) -> Iterator[System]:
    port = free_port()
    path = folder / "up.yaml"
    path.write_text(text.replace("port: 8000", f"port: {port}"))
    with System(path, port) as running:
        try:
            running.wait_for("the gateway and the replicas are deployed", 120.0)
            yield running
        finally:
            if running.process.poll() is None:
                running.end(signal.SIGTERM)


@pytest.fixture
def scaled(tmp_path: Path) -> Iterator[System]:
    yield from started(tmp_path, config_text("{min: 1, max: 4, cold_start_s: 5, down_after_s: 15}"))


async def test_a_step_brings_four_replicas_and_calm_takes_three_away(scaled: System) -> None:
    await asyncio.to_thread(scaled.wait_for, r"^ready ", 60.0)
    load, over = Load(scaled.url, per_s=1.5), asyncio.Event()
    running = asyncio.create_task(load.run(over))
    await until_ready_replicas(scaled.url, 1, 20.0)
    load.per_s = 14.0
    await until_ready_replicas(scaled.url, 4, 60.0)
    load.per_s = 1.0
    await until_ready_replicas(scaled.url, 1, 200.0)
    over.set()
    await running
    assert load.failed == []
    assert load.whole > 100


@pytest.fixture
def sleepy(tmp_path: Path) -> Iterator[System]:
    scale = "{min: 0, max: 1, cold_start_s: 5, down_after_s: 3, to_zero_after_s: 5}"
    yield from started(tmp_path, config_text(scale))


async def test_a_tier_that_sleeps_wakes_when_somebody_asks_and_sleeps_again(sleepy: System) -> None:
    await asyncio.to_thread(until, lambda: _answers(sleepy), 60.0)
    # Calm after a panic, nobody asking, and nobody coming in its place: that takes a minute and a half.
    await until_ready_replicas(sleepy.url, 0, 150.0)
    headers, body = await asyncio.to_thread(sleepy.ask)
    assert headers["x-served-tier"] == "primary"
    assert body["choices"][0]["message"]["content"]
    assert len(engines(sleepy)) <= 1


def _answers(system: System) -> bool:
    try:
        return system.ask()[0]["x-served-tier"] == "primary"
    except OSError:
        return False


def engines(system: System) -> set[int]:
    """The simulated engines' processes."""
    found = set()
    for process in system.descendants():
        with suppress(psutil.Error):
            # Not the guards beside them, whose own command names the engine's.
            if process.cmdline()[1:3] == ["-m", "loadtests.engine"]:
                found.add(process.pid)
    return found


@pytest.fixture
def two(tmp_path: Path) -> Iterator[System]:
    yield from started(tmp_path, config_text("{min: 2}"))


async def test_an_upgrade_of_a_tier_under_load_costs_nobody_anything(two: System) -> None:
    await asyncio.to_thread(two.wait_for, r"^ready ", 60.0)
    await until_ready_replicas(two.url, 2, 30.0)
    before = engines(two)
    load, over = Load(two.url, per_s=4.0), asyncio.Event()
    running = asyncio.create_task(load.run(over))
    two.config.write_text(two.config.read_text().replace("PYTHONPATH:", "UPGRADED: yes, PYTHONPATH:"))
    two.process.send_signal(signal.SIGHUP)

    def has_changed() -> bool:
        now = engines(two)
        return len(now) == 2 and not now & before

    await asyncio.to_thread(until, has_changed, 90.0)
    over.set()
    await running
    assert load.failed == []
    assert load.whole > 10
