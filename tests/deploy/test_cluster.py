"""`graceway up` on a cluster of several Ray nodes, with simulated engines: where replicas run, and a node that dies."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from loadtests.processes import RedisProcess
from tests.deploy.test_scaling_live import ENGINE, Load
from tests.deploy.test_up import ROOT, System, until
from tests.rig import free_port

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(400)]

KEY = {"authorization": "Bearer for-tests"}
SHA256 = sha256(b"for-tests").hexdigest()
CONFIG = """
server: {{host: 0.0.0.0, port: {port}}}
state_store: {{url: "{store}"}}
admin_key: for-tests
keys: [{{name: tests, sha256: {sha256}}}]
models:
  chat:
    tiers:
      - name: primary
        backend: command
        command: {engine}
        served_model: m
        slots: 8
        scale: {{min: 3}}
        slo: {{ttft_s: 10.0, itl_s: 0.5}}
        environment: {{PYTHONPATH: "{root}"}}
"""


@dataclass
class Node:
    """A Ray node: its raylet, and below that all that runs there."""

    host: str
    raylet: int

    def processes(self) -> list[psutil.Process]:
        raylet = psutil.Process(self.raylet)
        return [raylet, *raylet.children(recursive=True)]

    def runs(self, name: str) -> bool:
        for process in self.processes():
            with suppress(psutil.Error):
                if name in " ".join(process.cmdline()):
                    return True
        return False

    def die(self) -> None:
        """As when its power is cut: all at once, and nobody has the time to say anything."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.Error):
                process.suspend()
        for process in processes:
            with suppress(psutil.Error):
                process.kill()


@pytest.fixture
def cluster() -> Iterator[tuple[str, list[Node]]]:
    """Three nodes, each with an address and a zone of its own."""
    runner = subprocess.Popen(
        [sys.executable, "-m", "tests.deploy.ray_nodes", "3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    assert runner.stdin is not None
    assert runner.stdout is not None
    try:
        told = json.loads(runner.stdout.readline())
        yield told["address"], [Node(**node) for node in told["nodes"]]
    finally:
        below = psutil.Process(runner.pid).children(recursive=True)
        runner.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            runner.wait(30)
        for process in psutil.wait_procs(below, timeout=5)[1]:
            with suppress(psutil.Error):
                process.kill()
        runner.kill()
        runner.wait()
        runner.stdout.close()


@pytest.fixture
async def system(
    cluster: tuple[str, list[Node]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[System]:
    address, _ = cluster
    monkeypatch.setenv("RAY_ADDRESS", address)
    # All nodes are one machine, and the head's proxy has the port.
    monkeypatch.setenv("RAY_SERVE_WORKER_PROXY_HTTP_PORT", str(free_port()))
    port, path = free_port(), tmp_path / "up.yaml"
    async with RedisProcess() as redis:
        path.write_text(
            CONFIG.format(port=port, store=redis.url, engine=json.dumps(ENGINE), root=ROOT, sha256=SHA256)
        )
        with System(path, port) as running:
            try:
                await asyncio.to_thread(running.wait_for, r"^ready ", 120.0)
                yield running
            finally:
                if running.process.poll() is None:
                    await asyncio.to_thread(running.end, signal.SIGTERM)


async def replicas(url: str) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession(headers=KEY) as http, http.get(f"{url}/status") as answer:
        status = await answer.json()
    (tier,) = status["models"]["chat"]["tiers"]
    return [replica for replica in tier["replicas"] if replica["state"] == "ready"]


async def until_ready(url: str, count: int, zones: set[str], within_s: float) -> list[dict[str, Any]]:
    async with asyncio.timeout(within_s):
        while True:
            found = await replicas(url)
            if len(found) == count and {r["zone"] for r in found} == zones:
                return found
            await asyncio.sleep(0.25)


async def test_a_node_dies_under_load_and_a_replica_is_taken_away_and_nobody_notices(
    system: System, cluster: tuple[str, list[Node]]
) -> None:
    _, nodes = cluster
    zones = {f"zone-{number}" for number in range(1, 4)}
    await until_ready(system.url, 3, zones, 60.0)
    # Requests on a gateway that dies have nobody to go on with them: another node than its own.
    at, victim = next(
        (number, node)
        for number, node in enumerate(nodes, 1)
        if number > 1 and not node.runs("ray::ServeReplica:graceway:gateway")
    )
    load, over = Load(system.url, 6.0, tokens=100, headers=KEY), asyncio.Event()
    running = asyncio.create_task(load.run(over))
    await asyncio.sleep(4.0)
    assert sum(r["in_flight"] for r in await replicas(system.url)) > 3

    victim.die()
    left = zones - {f"zone-{at}"}
    await until_ready(system.url, 2, left, 10.0)
    back = await until_ready(system.url, 3, left, 120.0)
    await asyncio.to_thread(until, lambda: not lingering(victim), 10.0, lambda: str(lingering(victim)))

    going = back[0]["replica"]
    await preempt(system.url, going)
    await until_gone(system.url, going, 15.0)
    await until_ready(system.url, 3, left, 60.0)
    over.set()
    await running
    assert load.failed == []
    assert load.refused == 0
    assert load.whole > 100


async def preempt(url: str, replica: str) -> None:
    body = {"replica": replica, "grace_s": 8.0}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/admin/preempt", json=body, headers=KEY) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def until_gone(url: str, name: str, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while name in {r["replica"] for r in await replicas(url)}:  # noqa: ASYNC110 - it changes in another process
            await asyncio.sleep(0.25)


def lingering(node: Node) -> list[str]:
    """Engines that serve at a dead node's address all the same."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if "loadtests.engine" in command and node.host in command:
                found.append(" ".join(command))
    return found
