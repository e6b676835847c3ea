"""Streams that lose their vLLM in the middle: killed with SIGKILL, continued on another, token for token the same."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import orjson
import psutil
import pytest
import yaml

from loadtests.processes import ServerProcess
from replicas.engines import EngineSpec, command, environment
from state_store.child_process import ChildProcess
from tests.rig import eventually, free_port

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "smollm2-135m"
TOKENS = 48
PROMPTS = (
    "Write one sentence about the sea.",
    "Name three colours and say where each is found. Use emoji 🌊 and accents é à.",
    "Count from one to twenty in words.",
)
STARTS_WITHIN_S = 240.0


class Vllm:
    """One real vLLM server on the CPU, that can be killed and started again at its address."""

    def __init__(self, log_path: Path) -> None:
        self._log_path, self.port = log_path, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        # In float32: prefill and decoding round alike there, so that greedy text has one answer. In bfloat16 near ties
        # fall either way, with one vLLM and no failure too.
        exact = ("--dtype", "float32")
        self._spec = EngineSpec("vllm", str(MODEL), "smollm2", slots=4, max_model_len=1024, extra_args=exact)

    async def start(self) -> None:
        env = environment(self._spec, os.environ)
        self._child = await ChildProcess.start(
            command(self._spec, self.port), env=env, log_path=self._log_path
        )
        await eventually(self._is_healthy, STARTS_WITHIN_S)

    async def _is_healthy(self) -> bool:
        async with aiohttp.ClientSession() as http:
            try:
                async with http.get(self.url + "/health") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

    async def kill(self) -> None:
        """SIGKILL to all its processes at once."""
        engine = psutil.Process(self._child.pid)
        for process in (engine, *engine.children(recursive=True)):
            os.kill(process.pid, signal.SIGKILL)
        await self._child.gone()

    async def stop(self) -> None:
        await self._child.stop()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[Vllm, Vllm]]:
    engines = Vllm(tmp_path / "a.log"), Vllm(tmp_path / "b.log")
    try:
        # One after the other: two at once compete for the cores, and take longer than twice as long.
        for engine in engines:
            await engine.start()
        yield engines
    finally:
        for engine in engines:
            await engine.stop()


def config_of(pair: tuple[Vllm, Vllm], path: Path) -> Path:
    tier = {
        "name": "primary",
        "backend": "openai",
        "served_model": "smollm2",
        "slots": 4,
        "slo": {"ttft_s": 20.0, "itl_s": 5.0},
        "replicas": [{"url": engine.url} for engine in pair],
    }
    path.write_text(
        yaml.safe_dump(
            {
                "server": {"port": 0},
                "state_store": {"url": "memory"},
                "health": {"interval_s": 1.0, "timeout_s": 10.0},
                "models": {"chat": {"tiers": [tier]}},
            }
        )
    )
    return path


def asking(model: str, prompt: str, **more: Any) -> Json:
    messages = [{"role": "user", "content": prompt}]
    return {
        "model": model,
        "messages": messages,
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


async def undisturbed(http: aiohttp.ClientSession, engine: Vllm, prompt: str) -> tuple[str, list[int]]:
    async with http.post(
        engine.url + "/v1/chat/completions", json=asking("smollm2", prompt, return_token_ids=True)
    ) as answer:
        choice = (await answer.json())["choices"][0]
        return choice["message"]["content"], choice["token_ids"]


class Heard:
    """A stream as its client hears it, and the moment at which its replica is to die."""

    def __init__(self, kill_after: int) -> None:
        self.text, self.ids, self.events = "", [], 0
        self.ending, self.usage, self.replica = "", {}, ""
        self.is_due = asyncio.Event()
        self._kill_after = kill_after

    async def listen(self, http: aiohttp.ClientSession, url: str, body: Json) -> None:
        async with http.post(url + "/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            self.replica = answer.headers["x-served-replica"]
            async for line in answer.content:
                if line.startswith(b"data: "):
                    self._hear(line[6:].strip())

    def _hear(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.ending += "[DONE]"
            return
        event = orjson.loads(data)
        if "error" in event:
            self.ending += f"error {event['error']}"
            return
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            self.text += choice["delta"].get("content") or ""
            self.ids += choice.get("token_ids") or []
            self.events += 1
        if self.events > self._kill_after:
            self.is_due.set()


async def one_kill(
    http: aiohttp.ClientSession,
    gateway: str,
    pair: tuple[Vllm, Vllm],
    prompt: str,
    after: int,
    wants_ids: bool,
) -> Heard:
    """A stream whose replica is killed after so many tokens, and is started again afterwards."""
    body = asking("chat", prompt, stream=True, stream_options={"include_usage": True})
    if wants_ids:
        body["return_token_ids"] = True
    heard = Heard(after)
    listening = asyncio.create_task(heard.listen(http, gateway, body))
    await asyncio.wait_for(heard.is_due.wait(), 60.0)
    victim = next(e for e in pair if str(e.port) in heard.replica)
    await victim.kill()
    await asyncio.wait_for(listening, 120.0)
    await victim.start()
    return heard


async def run_kills(pair: tuple[Vllm, Vllm], path: Path, kills: int) -> None:
    rng = Random(7)
    gateway = ServerProcess(sys.executable, "-m", "deploy", "serve", "-c", str(config_of(pair, path)))
    async with gateway, aiohttp.ClientSession() as http:
        expected = {prompt: await undisturbed(http, pair[0], prompt) for prompt in PROMPTS}
        for number in range(kills):
            prompt, wants_ids = PROMPTS[number % len(PROMPTS)], number % 2 == 1
            heard = await one_kill(http, gateway.url, pair, prompt, rng.randrange(1, TOKENS - 8), wants_ids)
            text, ids = expected[prompt]
            assert heard.ending == "[DONE]"
            assert heard.text == text
            assert heard.ids == (ids if wants_ids else [])
            assert heard.usage["completion_tokens"] == TOKENS
            await eventually(lambda: all_ready(http, gateway.url), 60.0)


async def all_ready(http: aiohttp.ClientSession, url: str) -> bool:
    async with http.get(url + "/status") as answer:
        tiers = (await answer.json())["models"]["chat"]["tiers"]
        return all(r["state"] == "ready" for r in tiers[0]["replicas"])


@pytest.mark.real
@pytest.mark.timeout(600)
async def test_a_stream_goes_on_token_for_token_when_its_vllm_is_killed(
    pair: tuple[Vllm, Vllm], tmp_path: Path
) -> None:
    await run_kills(pair, tmp_path / "gateway.yaml", kills=2)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_ten_kills_lose_repeat_and_change_nothing(pair: tuple[Vllm, Vllm], tmp_path: Path) -> None:
    await run_kills(pair, tmp_path / "gateway.yaml", kills=10)
