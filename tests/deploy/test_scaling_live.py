"""Tiers that grow and shrink on Ray, with simulated engines: no request fails and no stream breaks on the way."""

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.deploy.test_up import ROOT, System, until
from tests.rig import free_port

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(400)]

TOKENS = 40
ASK = {"model": "chat", "messages": [{"role": "user", "content": "Count."}], "ignore_eos": True}
ENGINE = [
    *(sys.executable, "-m", "loadtests.engine", "--host", "{host}", "--port", "{port}"),
    *("--served-model", "{served_model}", "--slots", "{slots}", "--token-ms", "20"),
]


def config_text(scale: str, gateways: int = 1) -> str:
    return f"""
server: {{host: 127.0.0.1, port: 8000, grpc_port: 0, gateways: {gateways}}}
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
        environment: {{PYTHONPATH: "{ROOT}"}}
"""


@dataclass
class Load:
    """Streams at a rate that may change, and how each ended."""

    url: str
    per_s: float
    tokens: int = TOKENS
    headers: dict[str, str] = field(default_factory=dict)
    whole: int = 0
    refused: int = 0
    """With 429, before anything began: as honest as the step is steep."""
    failed: list[str] = field(default_factory=list)

    async def run(self, until_set: asyncio.Event) -> None:
        rng, under_way = random.Random(1), set()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, headers=self.headers) as http:
            while not until_set.is_set():
                under_way.add(asyncio.create_task(self._stream(http)))
                await asyncio.sleep(rng.expovariate(self.per_s))
            await asyncio.gather(*under_way)

    async def _stream(self, http: aiohttp.ClientSession) -> None:
        body = ASK | {"max_tokens": self.tokens, "stream": True}
        try:
            async with http.post(f"{self.url}/v1/chat/completions", json=body) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failed.append(repr(error))
            return
        events = [line for line in text.splitlines() if line.startswith("data: ")]
        is_whole = answer.status == 200 and events[-1:] == ["data: [DONE]"] and len(events) >= self.tokens
        if is_whole:
            self.whole += 1
        elif answer.status == 429 and "retry-after" in answer.headers:
            self.refused += 1
        else:
            self.failed.append(f"{answer.status} {text[-300:]}")


async def ready_ones(url: str) -> dict[str, dict[str, Any]]:
    """What the gateway says of its ready replicas, by name."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/status") as answer:
        status = await answer.json()
    (tier,) = status["models"]["chat"]["tiers"]
    return {replica["replica"]: replica for replica in tier["replicas"] if replica["state"] == "ready"}


async def ready_names(url: str) -> list[str]:
    return list(await ready_ones(url))


async def ready_replicas(url: str) -> int:
    return len(await ready_names(url))


async def bind_sessions(url: str, other_than: str) -> Counter[str]:
    """Begins sessions until another replica than the oldest has most of them, by two; how many each one has."""
    bound: Counter[str] = Counter()
    async with aiohttp.ClientSession() as http:
        for number in range(200):
            headers = {"x-session-id": f"s{number}"}
            body = ASK | {"max_tokens": 2}
            async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
                if answer.status == 200:
                    bound[answer.headers["x-served-replica"]] += 1
            leaders = bound.most_common(2)
            if number >= 20 and leaders[0][0] != other_than and leaders[0][1] >= leaders[-1][1] + 2:
                break
    return bound


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
    [oldest] = await ready_names(scaled.url)
    load.per_s = 14.0
    await until_ready_replicas(scaled.url, 4, 60.0)
    load.per_s = 1.0
    bound = await bind_sessions(scaled.url, other_than=oldest)
    await until_ready_replicas(scaled.url, 1, 200.0)
    assert await ready_names(scaled.url) == [bound.most_common(1)[0][0]], bound
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


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[System]:
    yield from started(tmp_path, config_text("{min: 2, standbys: 1}"))


async def test_a_standby_steps_in_and_whoever_comes_instead_stands_by(standing: System) -> None:
    await asyncio.to_thread(standing.wait_for, r"^ready ", 60.0)
    await until_ready_replicas(standing.url, 3, 30.0)
    [first] = await standbys(standing.url)
    killed, told = set(await ready_names(standing.url)) - {first}
    load, over = Load(standing.url, per_s=3.0), asyncio.Event()
    running = asyncio.create_task(load.run(over))
    await asyncio.sleep(2.0)

    os.kill(engine_of((await ready_ones(standing.url))[killed]), signal.SIGKILL)
    await until_stands_by(standing.url, {killed}, 40.0)

    await preempt(standing.url, told, grace_s=8.0)
    async with asyncio.timeout(60.0):
        while told in (names := await ready_names(standing.url)) or len(names) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.25)
    # It had been ready for longer than whoever has come now.
    [newest] = set(names) - {first, killed}
    await until_stands_by(standing.url, {newest}, 10.0)
    over.set()
    await running
    assert load.failed == []
    assert load.refused == 0
    assert load.whole > 30


async def standbys(url: str) -> set[str]:
    """Ready and out of rotation."""
    return {name for name, replica in (await ready_ones(url)).items() if replica["stands_by"]}


async def until_stands_by(url: str, names: set[str], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while await standbys(url) != names:  # noqa: ASYNC110 - it changes in another process
            await asyncio.sleep(0.1)


async def preempt(url: str, replica: str, grace_s: float) -> None:
    body = {"replica": replica, "grace_s": grace_s}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/admin/preempt", json=body) as answer:
        assert answer.status == 200, await answer.text()


def engine_of(replica: dict[str, Any]) -> int:
    """The process that listens where a replica serves."""
    port = int(replica["url"].rsplit(":", 1)[1])
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
            assert connection.pid is not None
            return connection.pid
    raise AssertionError(f"nobody listens on {port}")


@pytest.fixture(params=[1, 2])
def gateways(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[System, int]]:
    for system in started(tmp_path, config_text("{min: 2}", gateways=request.param)):
        yield system, request.param


def gateway_processes(system: System) -> set[int]:
    found = set()
    for process in system.descendants():
        with suppress(psutil.Error):
            if process.cmdline()[:1] == ["ray::ServeReplica:graceway:gateway"]:
                found.add(process.pid)
    return found


async def test_an_upgrade_of_the_gateways_under_load_costs_nobody_anything(
    gateways: tuple[System, int],
) -> None:
    system, count = gateways
    await asyncio.to_thread(system.wait_for, r"^ready ", 60.0)
    await until_ready_replicas(system.url, 2, 30.0)
    await asyncio.to_thread(until, lambda: len(gateway_processes(system)) == count, 30.0)
    before = gateway_processes(system)
    short, long, over = Load(system.url, 3.0), Load(system.url, 0.4, tokens=500), asyncio.Event()
    running = asyncio.gather(short.run(over), long.run(over))
    await asyncio.sleep(3.0)
    port = free_port()
    system.config.write_text(system.config.read_text().replace("grpc_port: 0", f"grpc_port: {port}"))
    system.process.send_signal(signal.SIGHUP)

    def has_changed() -> bool:
        now = gateway_processes(system)
        return len(now) == count and not now & before

    await asyncio.to_thread(until, has_changed, 120.0, lambda: "\n".join(system.lines))
    over.set()
    await running
    assert short.failed + long.failed == []
    assert short.whole > 10
    assert long.whole >= 2
