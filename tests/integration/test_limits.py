"""Clients that take their time, take too much, or do not read: they are ended, and nobody else notices."""

import asyncio
import resource
import socket
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.integration.client import Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.raw import CHAT, RawClient, chat, post
from tests.integration.rig import all_idle, serving, tier, write_config
from tests.integration.test_keys import ask as ask_with_key
from tests.integration.test_keys import key
from tests.rig import ServerProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY = chat()


@asynccontextmanager
async def connected(url: str, **options: Any) -> AsyncIterator[RawClient]:
    client = await RawClient.open(url, **options)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("path", [CHAT, "/admin/pin"], ids=["hot", "fastapi"])
@pytest.mark.parametrize("part", ["head", "body"])
async def test_a_request_that_trickles_in_is_ended(
    engines: Engines, config: Path, part: str, path: str
) -> None:
    limits = {"head_timeout_s": 0.3, "body_timeout_s": 0.3, "keep_alive_s": 30.0}
    async with serving(config, tier("primary", engines.a), limits=limits) as gateway:
        async with connected(gateway.url) as client:
            whole = post(BODY, path=path)
            begun = whole[:10] if part == "head" else whole[: -len(BODY) + 3]
            await client.send(begun)
            trickle = asyncio.create_task(_trickle(client))
            said = await client.response()
            trickle.cancel()
            assert (said.status, said.headers["connection"]) == (408, "close")
        assert_whole(Question(), await ask(gateway.url, Question()))


async def _trickle(client: RawClient) -> None:
    while True:
        await asyncio.sleep(0.05)
        client.writer.write(b"a")


async def test_a_connection_that_asks_nothing_is_closed(engines: Engines, config: Path) -> None:
    async with (
        serving(config, tier("primary", engines.a), limits={"keep_alive_s": 0.2}) as gateway,
        connected(gateway.url) as never,
        connected(gateway.url) as once,
    ):
        await once.send(post(BODY))
        assert (await once.response()).status == 200
        assert await never.is_ended()
        assert await once.is_ended()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 400_000, 431),  # and never an end
        (b"GET / HTTP/1.1\r\n" + b"x: a\r\n" * 200 + b"\r\n", 431),
        (post(b"1\r\n{\r\n0\r\n" + b"x: a\r\n" * 80_000, "transfer-encoding: chunked", sized=False), 431),
        (post(b"1;" + b"a" * 400_000, "transfer-encoding: chunked", sized=False), 431),
    ],
    ids=["url", "header", "endless header", "headers", "trailers", "chunk extension"],
)
async def test_a_head_that_is_too_large_is_refused(
    engines: Engines, config: Path, sent: bytes, status: int
) -> None:
    async with serving(config, tier("primary", engines.a)) as gateway, connected(gateway.url) as client:
        sending = asyncio.create_task(_in_pieces(client, sent))
        assert (await client.response()).status == status
        await asyncio.wait([sending])


async def _in_pieces(client: RawClient, data: bytes) -> None:
    try:
        for start in range(0, len(data), 10_000):
            await client.send(data[start : start + 10_000])
            await asyncio.sleep(0)
    except ConnectionError:
        return


async def test_a_client_that_does_not_read_loses_its_slot(engines: Engines, config: Path) -> None:
    """One slot: whoever waits for it gets it as soon as the client that does not read is ended, well before its end."""
    one = tier("primary", engines.a, slots=1)
    async with (
        serving(config, one, limits={"write_timeout_s": 0.3}) as gateway,
        connected(gateway.url) as client,
    ):
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(post(chat(60_000, stream=True)))
        question = Question(tokens=3)
        assert_whole(question, await asyncio.wait_for(ask(gateway.url, question), 30))
        await all_idle(gateway, engines.a)


async def test_a_key_has_so_many_requests_under_way(engines: Engines, config: Path) -> None:
    async with serving(
        config, tier("primary", engines.a), keys=[key("sk-a", max_at_once=2), key("sk-b")]
    ) as gateway:
        bearing = "authorization: Bearer sk-a"
        async with connected(gateway.url) as one, connected(gateway.url) as two:
            for client in (one, two):
                await client.send(post(chat(3000, stream=True), bearing))
                await client.reader.readuntil(b"data: ")
            status, body, headers = await ask_with_key(gateway.url, "sk-a")
            assert (status, headers["x-shed-reason"], body["error"]["code"]) == (
                429,
                "rate_limited",
                "rate_limited",
            )
            assert headers["retry-after"] == "1"
            assert (await ask_with_key(gateway.url, "sk-b"))[0] == 200
        await all_idle(gateway, engines.a)
        assert (await ask_with_key(gateway.url, "sk-a"))[0] == 200


async def test_a_full_house_closes_who_is_idle_and_refuses_when_nobody_is(
    engines: Engines, config: Path
) -> None:
    endless = post(chat(3000, stream=True))
    async with (
        serving(config, tier("primary", engines.a), limits={"max_connections": 3}) as gateway,
        connected(gateway.url) as first,
        connected(gateway.url) as idle,
        connected(gateway.url) as second,
    ):
        await first.send(endless)
        await first.reader.readuntil(b"data: ")
        async with connected(gateway.url) as third:
            assert await idle.is_ended()
            for client in (second, third):
                await client.send(endless)
                await client.reader.readuntil(b"data: ")
            async with connected(gateway.url) as refused:
                said = await refused.response()
                assert (said.status, said.headers["x-shed-reason"]) == (429, "queue_full")
                assert said.headers["retry-after"] == "1"
            assert not first.reader.at_eof()


# many at once


def _room_for(files: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < files:
        pytest.skip(f"a process may have {hard} files here, and this takes {files}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _latencies_s(url: str, count: int) -> list[float]:
    """The times of so many requests, one after the other; each must succeed."""
    loop, times = asyncio.get_running_loop(), []
    async with aiohttp.ClientSession() as http:
        for _ in range(count):
            began = loop.time()
            async with http.post(
                url + CHAT, data=BODY, headers={"content-type": "application/json"}
            ) as answer:
                assert answer.status == 200, await answer.text()
                await answer.read()
            times.append(loop.time() - began)
    return times


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


def _rss(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


@asynccontextmanager
async def crowd(url: str, count: int) -> AsyncIterator[list[RawClient]]:
    """Connections that keep the gateway waiting: a third say nothing, a third half a head, a third half a body."""
    halves = (b"", post(BODY)[:30], post(BODY)[:-5])
    clients: list[RawClient] = []
    address = 0
    try:
        for start in range(0, count, 200):
            # 28,000 ports are all that one pair of addresses has.
            address += 1
            local = (f"127.0.0.{2 + address % 50}", 0)
            some = range(start, min(start + 200, count))
            clients += await asyncio.gather(*(RawClient.open(url, local_addr=local) for _ in some))
        for n, client in enumerate(clients):
            client.writer.write(halves[n % 3])
        yield clients
    finally:
        for client in clients:
            client.close()


async def _beside(url: str, pid: int, count: int, asked: int) -> tuple[list[float], list[float], float]:
    """Times of requests without and beside such a crowd, and the bytes that one of its connections takes."""
    await _latencies_s(url, 20)
    alone, before = await _latencies_s(url, asked), _rss(pid)
    async with crowd(url, count) as clients:
        beside = await _latencies_s(url, asked)
        taken = (_rss(pid) - before) / count
        assert sum(not client.reader.at_eof() for client in clients) == count
    return alone, beside, taken


SLOW: dict[str, Any] = {"head_timeout_s": 300.0, "body_timeout_s": 300.0, "keep_alive_s": 300.0}


@asynccontextmanager
async def _process(config: Path, engines: Engines) -> AsyncIterator[ServerProcess]:
    write_config(config, {"chat": [tier("primary", engines.a)]}, {"limits": SLOW})
    arguments = ("-m", "deploy", "serve", "-c", str(config), "--port", "0")
    async with ServerProcess(sys.executable, *arguments) as process:
        yield process


async def test_a_thousand_connections_that_wait_harm_nobody(engines: Engines, config: Path) -> None:
    _room_for(2000)
    async with _process(config, engines) as process:
        alone, beside, _ = await _beside(process.url, process.pid, 1000, 60)
        assert statistics.median(beside) < 3 * statistics.median(alone) + 0.02


@pytest.mark.slow
async def test_ten_thousand_connections_that_wait_harm_nobody(
    engines: Engines, config: Path, record_property: Any
) -> None:
    _room_for(12_000)
    async with _process(config, engines) as process:
        alone, beside, taken = await _beside(process.url, process.pid, 10_000, 300)
        told = f"p99 {_p99(alone):.4f} s alone, {_p99(beside):.4f} s beside, {taken:.0f} bytes a connection"
        record_property("ten thousand", told)
        print(told)
        assert _p99(beside) < 3 * _p99(alone) + 0.1
        assert taken < 64 * 1024


async def test_slow_connections_are_gone_by_themselves(engines: Engines, config: Path) -> None:
    limits = {"head_timeout_s": 0.3, "body_timeout_s": 0.3, "keep_alive_s": 0.3}
    async with serving(config, tier("primary", engines.a), limits=limits) as gateway, crowd(gateway.url, 300):

        async def are_gone() -> bool:
            return len(gateway.gateway.asgi.connections) <= 2  # type: ignore[attr-defined]

        await eventually(are_gone, 10)
