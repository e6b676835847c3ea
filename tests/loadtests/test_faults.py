"""Every fault of the simulated engine: it happens when asked for, and heals."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from loadtests.faults import parse_fault
from loadtests.tokens import expected_answer
from tests.rig import EngineProcess, eventually

QUESTION = [{"role": "user", "content": "how are you"}]
CHAT = {"model": "m", "messages": QUESTION, "max_tokens": 20, "ignore_eos": True}
RIGHT = expected_answer(QUESTION, 20, ignore_eos=True).text


@pytest.fixture
async def engine() -> AsyncIterator[EngineProcess]:
    async with EngineProcess(slots=4, token_ms=5) as process:
        yield process


class Stream:
    """A streamed answer as far as it came."""

    def __init__(self) -> None:
        self.contents: list[str] = []
        self.errors: list[Any] = []
        self.broken = 0
        self.is_done = self.is_cut = self.is_silent = False
        self.status = 0

    @property
    def text(self) -> str:
        return "".join(self.contents)

    def take(self, line: str) -> None:
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            self.is_done = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            self.broken += 1
            return
        if "error" in event:
            self.errors.append(event["error"])
        elif event["choices"] and "role" not in event["choices"][0]["delta"]:
            self.contents.append(event["choices"][0]["delta"]["content"])


async def ask(engine: EngineProcess, within_s: float = 5.0, **more: object) -> Stream:
    stream = Stream()
    body = CHAT | {"stream": True} | more
    try:
        async with (
            asyncio.timeout(within_s),
            aiohttp.ClientSession() as http,
            http.post(f"{engine.url}/v1/chat/completions", json=body) as response,
        ):
            stream.status = response.status
            async for line in response.content:
                if line.startswith(b"data: "):
                    stream.take(line.decode().strip())
    except TimeoutError:
        stream.is_silent = True
    except aiohttp.ClientError:
        stream.is_cut = True
    return stream


async def status_of(url: str, within_s: float = 1.0) -> int:
    try:
        async with asyncio.timeout(within_s), aiohttp.ClientSession() as http, http.get(url) as response:
            return response.status
    except TimeoutError:
        return 0


async def has_tokens(engine: EngineProcess, tokens: int) -> bool:
    stats = await engine.stats()
    return bool(stats["tokens"] >= tokens)


async def healed(engine: EngineProcess) -> bool:
    await engine.fault("none")
    stream = await ask(engine)
    return stream.is_done and stream.text == RIGHT


@pytest.mark.parametrize("reset", [False, True])
async def test_cut(engine: EngineProcess, reset: bool) -> None:
    await engine.fault("cut", after_tokens=7, reset=reset)
    stream = await ask(engine)
    assert stream.is_cut
    assert not stream.is_done
    assert stream.text == expected_answer(QUESTION, 7, ignore_eos=True).text
    assert (await engine.stats())["running"] == 0
    assert await healed(engine)


async def test_a_fault_hits_streams_that_already_run(engine: EngineProcess) -> None:
    asking = asyncio.create_task(ask(engine, max_tokens=2000))
    await eventually(lambda: has_tokens(engine, 5))
    await engine.fault("cut", after_tokens=1)
    assert (await asking).is_cut


@pytest.mark.parametrize("kind", ["no_tokens", "role_then_error"])
async def test_a_fault_of_the_start_spares_streams_that_have_begun(engine: EngineProcess, kind: str) -> None:
    asking = asyncio.create_task(ask(engine, max_tokens=100))
    await eventually(lambda: has_tokens(engine, 5))
    await engine.fault(kind)
    stream = await asking
    assert stream.is_done
    assert len(stream.contents) == 100


async def test_hang_and_silence(engine: EngineProcess) -> None:
    await engine.fault("hang")
    assert (await ask(engine, within_s=0.3)).contents == []
    assert await status_of(f"{engine.url}/health") == 200
    await engine.fault("hang", health=True)
    assert await status_of(f"{engine.url}/health", 0.3) == 0
    await engine.fault("hang", after_tokens=4)
    stream = await ask(engine, within_s=0.5)
    assert stream.is_silent
    assert len(stream.contents) == 4
    assert await healed(engine)


async def test_healing_wakes_what_was_silent(engine: EngineProcess) -> None:
    await engine.fault("hang", after_tokens=4)
    asking = asyncio.create_task(ask(engine))
    await eventually(lambda: has_tokens(engine, 4))
    await engine.fault("none")
    stream = await asking
    assert stream.is_done
    assert stream.text == RIGHT


async def test_slow(engine: EngineProcess) -> None:
    loop = asyncio.get_running_loop()
    await engine.fault("slow", factor=10)
    begun = loop.time()
    stream = await ask(engine)
    assert stream.text == RIGHT
    assert loop.time() - begun > 19 * 0.05
    await engine.fault("none")
    begun = loop.time()
    assert (await ask(engine)).text == RIGHT
    assert loop.time() - begun < 0.5


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_error(engine: EngineProcess, status: int) -> None:
    await engine.fault("error", status=status, retry_after=2)
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{engine.url}/v1/chat/completions", json=CHAT) as response,
    ):
        assert response.status == status
        assert response.headers["retry-after"] == "2"
        assert (await response.json())["error"]["code"] == status
    assert await healed(engine)


async def test_a_share_and_a_number_of_requests(engine: EngineProcess) -> None:
    await engine.fault("error", share=0.5)
    statuses = [(await ask(engine, max_tokens=1)).status for _ in range(60)]
    assert 15 < statuses.count(500) < 45
    await engine.fault("error", times=2)
    assert [(await ask(engine, max_tokens=1)).status for _ in range(3)] == [500, 500, 200]


async def test_wrong_and_garbage(engine: EngineProcess) -> None:
    await engine.fault("wrong")
    stream = await ask(engine)
    assert stream.is_done
    assert len(stream.text) > 20
    assert stream.text != RIGHT
    await engine.fault("garbage")
    assert (await ask(engine)).text == "!" * 20
    await engine.fault("garbage", text="")
    stream = await ask(engine)
    assert stream.text == ""
    assert len(stream.contents) == 20
    assert await healed(engine)


async def test_health_faults(engine: EngineProcess) -> None:
    await engine.fault("unhealthy")
    assert await status_of(f"{engine.url}/health") == 503
    assert (await ask(engine)).text == RIGHT
    await engine.fault("slow_health", seconds=0.3)
    assert await status_of(f"{engine.url}/health", 0.1) == 0
    assert await status_of(f"{engine.url}/health", 2.0) == 200
    await engine.fault("none")
    assert await status_of(f"{engine.url}/health", 0.2) == 200


async def test_malformed(engine: EngineProcess) -> None:
    await engine.fault("malformed", after_tokens=3)
    stream = await ask(engine)
    assert stream.broken == 1
    assert stream.is_done
    assert len(stream.contents) == 19
    assert await healed(engine)


async def test_role_then_error(engine: EngineProcess) -> None:
    await engine.fault("role_then_error")
    stream = await ask(engine)
    assert stream.errors
    assert stream.contents == []
    await engine.fault("role_then_error", reset=True)
    assert (await ask(engine)).is_cut
    assert await healed(engine)


async def test_no_tokens(engine: EngineProcess) -> None:
    await engine.fault("no_tokens")
    stream = await ask(engine)
    assert stream.is_done
    assert stream.contents == [""]
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{engine.url}/v1/chat/completions", json=CHAT) as response,
    ):
        body = await response.json()
        assert response.status == 200
    assert body["choices"][0]["message"]["content"] == ""
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 0


async def test_error_event(engine: EngineProcess) -> None:
    await engine.fault("error_event", after_tokens=3)
    stream = await ask(engine)
    assert len(stream.contents) == 3
    assert stream.errors[0]["code"] == 500
    assert stream.is_done


async def test_die_at_a_token_and_come_back_on_the_same_port(engine: EngineProcess) -> None:
    url = engine.url
    await engine.fault("die", after_tokens=5)
    stream = await ask(engine)
    assert stream.is_cut
    assert stream.text == expected_answer(QUESTION, 5, ignore_eos=True).text
    await engine.restart()
    assert engine.url == url
    assert (await ask(engine)).text == RIGHT


async def test_die_at_once_and_a_fault_at_the_start() -> None:
    async with EngineProcess(token_ms=1, fault="unhealthy") as engine:
        assert await status_of(f"{engine.url}/health") == 503
        await engine.fault("die")
        async with asyncio.timeout(5):
            await engine.ended()


async def test_a_frozen_process_says_nothing_and_goes_on(engine: EngineProcess) -> None:
    asking = asyncio.create_task(ask(engine, max_tokens=100))
    await eventually(lambda: has_tokens(engine, 5))
    engine.freeze()
    assert await status_of(f"{engine.url}/health", 0.3) == 0
    engine.thaw()
    stream = await asking
    assert stream.is_done
    assert len(stream.contents) == 100


@pytest.mark.parametrize("body", [{"kind": "unknown"}, {"kind": "cut", "aftertokens": 3}, []])
def test_a_fault_that_is_not_one_is_refused(body: object) -> None:
    with pytest.raises(ValueError, match=r"kind|unknown fields"):
        parse_fault(body)
