"""`graceway up` on a cluster of several Ray nodes, with simulated engines: where replicas run, and nodes that die."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import psutil
import pytest

from loadtests.client import Question, Record, complaint, open_loop, poisson
from loadtests.processes import RedisProcess
from tests.deploy.test_scaling_live import ENGINE
from tests.deploy.test_up import ROOT, System
from tests.rig import free_port

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(240)]

KEY = {"authorization": "Bearer for-tests"}
SHA256 = sha256(b"for-tests").hexdigest()
ZONES = ("a", "a", "b", "b")
CONFIG = """
server: {{host: 0.0.0.0, port: {port}, gateways: 2}}
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
        scale: {{min: 4}}
        slo: {{ttft_s: 10.0, itl_s: 0.5}}
        environment: {{PYTHONPATH: "{root}"}}
"""
ONE_A_NODE = """
  large:
    tiers:
      - name: only
        backend: command
        command: {engine}
        served_model: m
        slots: 8
        gpu: 1
        scale: {{min: 4}}
        environment: {{PYTHONPATH: "{root}"}}
"""
"""A model of which a node has room for one replica."""


@dataclass
class Node:
    """A Ray node: its raylet, and below that all that runs there."""

    host: str
    zone: str
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

    def fall_silent(self) -> list[psutil.Process]:
        """As when its network is cut: nobody on it says anything more, connections stay. Returns who is silent."""
        processes = self.processes()
        for process in processes:
            with suppress(psutil.Error):
                process.suspend()
        return processes

    def die(self) -> None:
        """All at once, and nobody has the time to say anything."""
        for process in self.fall_silent():
            with suppress(psutil.Error):
                process.kill()


@pytest.fixture
def cluster() -> Iterator[tuple[str, list[Node]]]:
    """Its address and its nodes, the head first."""
    runner = subprocess.Popen(
        [sys.executable, "-m", "tests.deploy.ray_nodes", *ZONES],
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
    cluster: tuple[str, list[Node]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> AsyncIterator[System]:
    """With what the test's parameter adds to the config."""
    address, _ = cluster
    text = CONFIG + getattr(request, "param", "")
    monkeypatch.setenv("RAY_ADDRESS", address)
    # All nodes are one machine, and the head's proxy has the port.
    monkeypatch.setenv("RAY_SERVE_WORKER_PROXY_HTTP_PORT", str(free_port()))
    port, path = free_port(), tmp_path / "up.yaml"
    async with RedisProcess() as redis:
        path.write_text(
            text.format(port=port, store=redis.url, engine=json.dumps(ENGINE), root=ROOT, sha256=SHA256)
        )
        with System(path, port) as running:
            try:
                await asyncio.to_thread(running.wait_for, r"^ready ", 120.0)
                yield running
            finally:
                if running.process.poll() is None:
                    await asyncio.to_thread(running.end, signal.SIGTERM)


@dataclass
class Streams:
    """Answers of two seconds each, asked for whatever became of those before, until they are over."""

    url: str
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> list[Record]:
        begun_at = asyncio.get_running_loop().time()
        return await open_loop(
            [self.url], "chat", self._questions(), poisson(5.0, 200.0, Random(1)), begun_at
        )

    def _questions(self) -> Iterator[Question]:
        for number in count():
            if self.over.is_set():
                return
            yield Question(({"role": "user", "content": f"Question {number}."},), 100, KEY)


async def replicas(url: str, model: str = "chat") -> list[dict[str, Any]]:
    async with aiohttp.ClientSession(headers=KEY) as http, http.get(f"{url}/status") as answer:
        status = await answer.json()
    (tier,) = status["models"][model]["tiers"]
    return [replica for replica in tier["replicas"] if replica["state"] == "ready"]


def host_of(replica: dict[str, Any]) -> str:
    return str(replica["url"].split("/")[2].split(":")[0])


async def until_ready(
    url: str, hosts: dict[str, int], within_s: float, model: str = "chat"
) -> list[dict[str, Any]]:
    """Returns the ready replicas when each host has as many as `hosts` says, and no other one has any."""
    deadline = time.monotonic() + within_s
    while True:
        found = await replicas(url, model)
        if Counter(map(host_of, found)) == hosts:
            return found
        assert time.monotonic() < deadline, f"ready on {Counter(map(host_of, found))}, not {hosts}"
        await asyncio.sleep(0.25)


async def turn(url: str, session: str, model: str = "chat") -> str:
    """The replica that served a turn of a session."""
    question = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 2, "ignore_eos": True}
    body, headers = {"model": model, **question}, KEY | {"x-session-id": session}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return answer.headers["x-served-replica"]


async def sessions_on(url: str, replica: str, wanted: int) -> list[str]:
    """Sessions that have had their first turn there."""
    found: list[str] = []
    for number in range(200):
        if await turn(url, f"s{number}") == replica:
            found.append(f"s{number}")
        if len(found) == wanted:
            break
    return found


def with_gateway(nodes: list[Node]) -> list[Node]:
    return [node for node in nodes if node.runs("ray::ServeReplica:graceway:gateway")]


def may_go(nodes: list[Node]) -> Node:
    """The head stays, as Ray's control runs there; and requests on a gateway that dies have nobody to go on with them."""
    return next(node for node in nodes[1:] if node not in with_gateway(nodes))


async def test_a_node_dies_under_load_and_another_is_taken_away_and_nobody_notices(
    system: System, cluster: tuple[str, list[Node]]
) -> None:
    _, nodes = cluster
    found = await until_ready(system.url, {node.host: 1 for node in nodes}, 60.0)
    assert {host_of(r): r["zone"] for r in found} == {node.host: node.zone for node in nodes}
    assert {node.zone for node in with_gateway(nodes)} == {"a", "b"}
    victim = may_go(nodes)
    [lost] = [r["replica"] for r in found if host_of(r) == victim.host]
    sessions = await sessions_on(system.url, lost, 10)
    assert len(sessions) == 10
    load = Streams(system.url)
    running = asyncio.create_task(load.run())
    await until_busy(system.url, lost)

    victim.die()
    taken_over = [await turn(system.url, session) for session in sessions]
    zones = {r["replica"]: r["zone"] for r in found}
    assert victim.zone not in {zones[replica] for replica in taken_over}
    left = [node for node in nodes if node is not victim]
    await until_ready(system.url, {node.host: 1 for node in left}, 10.0)
    # Zones have alike many again, which takes two on what is left of the one that lost a node.
    twice = {node.host: 1 + (node.zone == victim.zone) for node in left}
    await until_ready(system.url, twice, 90.0)
    assert lingering(victim) == []

    going = next(node for node in left[1:] if twice[node.host] == 1)
    await preempt(system.url, going.host)
    await until_ready(system.url, {node.host: 2 for node in left if node is not going}, 60.0)
    load.over.set()
    assert_all_whole(await running)


@pytest.mark.parametrize("system", [ONE_A_NODE], indirect=True, ids=["no room elsewhere"])
async def test_a_node_falls_silent_under_load_and_nobody_notices(
    system: System, cluster: tuple[str, list[Node]]
) -> None:
    _, nodes = cluster
    found = await until_ready(system.url, {node.host: 1 for node in nodes}, 60.0)
    victim = may_go(nodes)
    load = Streams(system.url)
    running = asyncio.create_task(load.run())
    await until_busy(system.url, next(r["replica"] for r in found if host_of(r) == victim.host))

    silent = victim.fall_silent()
    try:
        left = [node for node in nodes if node is not victim]
        await until_ready(system.url, {node.host: 1 for node in left}, 15.0)
        twice = {node.host: 1 + (node.zone == victim.zone) for node in left}
        await until_ready(system.url, twice, 120.0)
        # Of the other model no node has room for one more: it goes on with what there is.
        await until_ready(system.url, {node.host: 1 for node in left}, 1.0, "large")
        served = {await turn(system.url, f"s{number}", "large") for number in range(12)}
        assert len(served) > 1
        load.over.set()
        assert_all_whole(await running)
    finally:
        for process in silent:
            with suppress(psutil.Error):
                process.kill()


def assert_all_whole(answers: list[Record]) -> None:
    """Every token of each was right and came once."""
    assert [complaint(answer, 0.0) for answer in answers if not answer.is_whole] == []
    assert len(answers) > 100
    assert max(answer.max_gap_s for answer in answers) < 5.0


async def until_busy(url: str, replica: str) -> None:
    """Until several streams are under way there."""
    async with asyncio.timeout(20.0):
        while sum(r["in_flight"] for r in await replicas(url) if r["replica"] == replica) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def preempt(url: str, host: str) -> None:
    body = {"host": host, "grace_s": 8.0}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/admin/preempt", json=body, headers=KEY) as answer,
    ):
        assert answer.status == 200, await answer.text()


def lingering(node: Node) -> list[str]:
    """Engines that serve at a dead node's address all the same."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            if "loadtests.engine" in command and node.host in command:
                found.append(" ".join(command))
    return found
