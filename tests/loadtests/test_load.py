"""Locust on simulated engines: headless, on several workers, with its page, and with limits that fail the run."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from loadtests.processes import ROOT
from tests.rig import EngineProcess, eventually, free_port

LOCUST = str(Path(sys.executable).parent / "locust")
FILE = str(ROOT / "loadtests" / "locustfile.py")
USERS = ("Bursts", "Chats", "Completions", "LeavingClients", "OpenLoop", "SlowReaders", "Streams")


@pytest.fixture
async def engine() -> AsyncIterator[EngineProcess]:
    async with EngineProcess(slots=64, token_ms=5) as process:
        yield process


async def locust(url: str, *arguments: str) -> tuple[int, str]:
    """Exit status and everything that it said."""
    return await ended(LOCUST, "-f", FILE, "--host", url, "--max-lag-p99-s", "none", *arguments)


async def ended(*arguments: str, within_s: float = 60.0) -> tuple[int, str]:
    """What came of a program of this Python's: its exit status, and everything that it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(within_s):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, said.decode()


def headless(seconds: int, users: int, *more: str) -> tuple[str, ...]:
    numbers = ("-u", str(users), "-r", "50", "-t", f"{seconds}s", "--stop-timeout", "10")
    return ("--headless", "--only-summary", *numbers, "--answer-tokens", "20", *more)


def count(said: str, kind: str, name: str) -> int:
    """How many Locust counted of an entry."""
    found = re.search(rf"^{kind} +{name} +(\d+)", said, re.MULTILINE)
    return int(found[1]) if found else 0


async def test_all_kinds_of_users_are_served_whole(engine: EngineProcess) -> None:
    short = ("--think-s", "0.1", "--prefix-tokens", "64", "--arrivals", "constant:10")
    status, said = await locust(engine.url, *headless(6, 25, *short))
    assert status == 0, said
    for name in USERS:
        assert count(said, "ask", name), said
    for kind in ("TTFT", "token gap", "longest gap"):
        assert count(said, kind, "Chats") > 5, said
    assert count(said, "generator lag", "wakes") > 10
    assert count(said, "generator lag", "reads") > 10
    assert count(said, "engine to kernel", "engine to kernel") > 10
    assert "the generator itself: " in said
    assert 10 <= count(said, "ask", "OpenLoop") <= 61, said
    stats = await engine.stats()
    assert stats["aborted"] >= count(said, "ask", "LeavingClients") > 0
    assert stats["running"] == 0
    assert stats["cached_tokens"] > 0


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"kind": "wrong"}, "divergent"),
        ({"kind": "cut", "after_tokens": 5}, "cut"),
        ({"kind": "error"}, "status 500"),
    ],
)
async def test_a_failing_server_fails_the_run(
    engine: EngineProcess, fault: dict[str, object], why: str
) -> None:
    await engine.fault(str(fault.pop("kind")), **fault)
    status, said = await locust(engine.url, *headless(2, 2, "Chats"))
    assert status == 1
    assert why in said
    assert "limit not kept: failed share is 1" in said


async def test_a_limit_that_is_not_kept_fails_the_run(engine: EngineProcess) -> None:
    status, said = await locust(engine.url, *headless(2, 2, "--max-gap-p99-s", "0.001", "Chats"))
    assert status == 1
    assert "limit not kept: gap p99 s" in said


async def test_several_workers_share_the_arrivals(engine: EngineProcess) -> None:
    run = headless(4, 2, "--processes", "2", "--arrivals", "constant:10", "OpenLoop")
    status, said = await locust(engine.url, *run)
    assert status == 0, said
    assert 20 <= count(said, "ask", "OpenLoop") <= 45, said
    assert '"OpenLoop": 2' in said


async def test_clients_of_two_tenants_are_told_apart_over_http_and_grpc() -> None:
    arguments = ("--users", "8", "--seconds", "4", "--", "--max-lag-p99-s", "none", "--think-s", "0.1")
    status, said = await ended("-m", "loadtests.load", *arguments, "Chats", "GrpcChats")
    assert status == 0, said
    for tenant in ("acme", "globex"):
        assert sum(count(said, "ask", f"{name} {tenant}") for name in ("Chats", "GrpcChats")), said
    assert sum(count(said, "longest gap", f"GrpcChats {tenant}") for tenant in ("acme", "globex")), said


async def test_where_nobody_speaks_grpc_the_run_fails() -> None:
    address = f"127.0.0.1:{free_port()}"
    status, said = await locust("http://127.0.0.1:1", *headless(2, 2, "--grpc", address, "GrpcChats"))
    assert status == 1
    assert "refused" in said


async def test_who_names_clients_of_grpc_has_to_say_where_it_is(engine: EngineProcess) -> None:
    status, said = await locust(engine.url, *headless(2, 2, "GrpcChats"))
    assert status == 1
    assert "GrpcChats need --grpc HOST:PORT" in said


async def test_a_line_without_a_key_is_told_and_shows_none(engine: EngineProcess, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("acme secret-of-acme\nonly-this-secret\n")
    status, said = await locust(engine.url, *headless(2, 2, "--keys", str(keys), "Chats"))
    assert status == 1
    assert "each line must hold a tenant's name and its key" in said
    assert "secret" not in said


async def test_a_trace_is_replayed_to_its_end(engine: EngineProcess, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    line = '{{"timestamp": {0}, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}}\n'
    trace.write_text("".join(line.format(number * 400) for number in range(10)))
    status, said = await locust(engine.url, *headless(8, 1, "--arrivals", f"replay:{trace},2", "OpenLoop"))
    assert status == 0, said
    assert count(said, "ask", "OpenLoop") == 10
    assert (await engine.stats())["tokens"] == 50


async def test_the_page_starts_a_run(engine: EngineProcess) -> None:
    port = free_port()
    command = (LOCUST, "-f", FILE, "--host", engine.url, "--web-host", "127.0.0.1", "--web-port", str(port))
    process = await asyncio.create_subprocess_exec(
        *command, "Chats", cwd=ROOT, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
            await eventually(lambda: _swarms(http), 30.0)
            await eventually(lambda: _asked(http), 30.0)
    finally:
        process.terminate()
        await process.wait()
    assert (await engine.stats())["served"]


async def _swarms(http: aiohttp.ClientSession) -> bool:
    try:
        async with http.post("/swarm", data={"user_count": "2", "spawn_rate": "2"}) as response:
            return bool((await response.json())["success"])
    except aiohttp.ClientError:
        return False


async def _asked(http: aiohttp.ClientSession) -> bool:
    async with http.get("/stats/requests") as response:
        lines = (await response.json())["stats"]
    return any(line["method"] == "TTFT" and line["num_requests"] > 1 for line in lines)
