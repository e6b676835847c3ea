"""The three checks, against the simulated engine and its faults."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest

from replicas.probe import (
    KnownPrompt,
    fault_in,
    nonsense_in,
    open_probe_session,
    probe_live,
    probe_ready,
    probe_right,
)
from tests.rig import EngineProcess

KNOWN = KnownPrompt()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_probe_session() as opened:
        yield opened


@pytest.mark.parametrize("answer", [" 8, 9, 10", "dog", "!!", "你好", "nano", "a�"])
def test_sense(answer: str) -> None:
    assert nonsense_in(answer) == ""


@pytest.mark.parametrize(
    "answer", ["", " \n\t", "!!!!!!", "! ! ! !", "nan nan nan", "NaNNaN", "�� �a", "\n!!!!\n"]
)
def test_nonsense(answer: str) -> None:
    assert nonsense_in(answer) != ""


@pytest.mark.parametrize(
    ("answer", "expect", "is_right"),
    [
        (" 8, 9", " 8, 9", True),
        (" 8, 9, 10", "8, 9", True),
        (" 8", "8, 9", True),
        (" 9, 9", "8, 9", False),
        ("", "8, 9", False),
        ("anything", None, True),
    ],
)
def test_the_known_answer(answer: str, expect: str | None, is_right: bool) -> None:
    assert (fault_in(answer, KnownPrompt(expect=expect)) == "") == is_right


async def test_a_healthy_engine_passes_all_three(session: aiohttp.ClientSession) -> None:
    async with EngineProcess() as engine:
        before = time.time()
        assert (await probe_live(session, engine.url)).is_ok
        assert (await probe_ready(session, engine.url, served_model="m")).is_ok
        right = await probe_right(session, engine.url, served_model="m", known=KNOWN)
        assert (right.kind, right.reason) == ("ok", "")
        assert before <= right.as_of <= time.time()
        assert 0 < right.latency_s < 5
        again = KnownPrompt(expect=right.answer)
        assert (await probe_right(session, engine.url, served_model="m", known=again)).is_ok


async def test_each_check_finds_its_own_kind_of_fault(session: aiohttp.ClientSession) -> None:
    async with EngineProcess() as engine:
        right = await probe_right(session, engine.url, served_model="m", known=KNOWN)
        known = KnownPrompt(expect=right.answer)
        other = await probe_ready(session, engine.url, served_model="other")
        assert (other.kind, other.reason) == ("failed", "serves m, not other")

        await engine.fault("unhealthy")
        assert (await probe_live(session, engine.url)).is_ok
        assert (await probe_ready(session, engine.url, served_model="m")).reason == "/health answered 503"

        await engine.fault("wrong")
        lied = await probe_right(session, engine.url, served_model="m", known=known)
        assert (lied.kind, "instead of" in lied.reason) == ("wrong", True)
        for text in ("!", ""):
            await engine.fault("garbage", text=text)
            found = await probe_right(session, engine.url, served_model="m", known=KNOWN)
            assert (found.kind, text or "nothing") == ("wrong", text or found.reason.split()[-1])

        await engine.fault("no_tokens")
        assert (await probe_right(session, engine.url, served_model="m", known=KNOWN)).kind == "wrong"

        await engine.fault("error", status=500)
        failed = await probe_right(session, engine.url, served_model="m", known=known)
        assert (failed.kind, failed.is_backpressure) == ("failed", False)
        await engine.fault("error", status=503, retry_after=1)
        full = await probe_right(session, engine.url, served_model="m", known=known)
        assert (full.kind, full.is_backpressure) == ("failed", True)


async def test_a_hung_engine_costs_its_own_checks_their_limit_and_others_nothing() -> None:
    async with (
        EngineProcess() as ill,
        EngineProcess() as well,
        open_probe_session() as first,
        open_probe_session() as second,
    ):
        ill.freeze()
        hanging = asyncio.create_task(
            probe_right(first, ill.url, served_model="m", known=KNOWN, timeout_s=1.0)
        )
        begun = time.monotonic()
        assert (await probe_right(second, well.url, served_model="m", known=KNOWN)).is_ok
        assert time.monotonic() - begun < 0.9
        found = await hanging
        assert (found.kind, found.reason) == ("failed", "no answer within 1 s")
        assert 0.9 < found.latency_s < 1.5
        live = await probe_live(first, ill.url, timeout_s=0.2)
        assert live.kind == "failed"


async def test_checks_carry_the_credentials(session: aiohttp.ClientSession) -> None:
    async with EngineProcess(api_key="secret") as engine:
        ready = await probe_ready(session, engine.url, served_model="m")
        assert (ready.kind, ready.reason) == ("failed", "/v1/models answered 401")
        assert (await probe_ready(session, engine.url, served_model="m", api_key="secret")).is_ok
        right = await probe_right(session, engine.url, served_model="m", known=KNOWN, api_key="secret")
        assert right.is_ok


async def test_nobody_there_and_somebody_else_there(session: aiohttp.ClientSession) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        found = await probe_live(session, url)
        assert (found.kind, found.reason) == ("failed", "refused")

    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for found in (
            await probe_live(session, url),
            await probe_ready(session, url, served_model="m"),
            await probe_right(session, url, served_model="m", known=KNOWN),
        ):
            assert (found.kind, found.reason) == ("failed", "no HTTP answer")
