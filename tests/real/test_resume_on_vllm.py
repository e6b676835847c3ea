"""Streams that lose their vLLM in the middle: killed with SIGKILL, continued on another, token for token the same, over HTTP
and over gRPC.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import aiohttp
import orjson
import psutil
import pytest
import yaml
from tritonclient.grpc import InferenceServerClient

from gateway.grpc_reply import FINAL
from loadtests.processes import ServerProcess
from replicas.engines import EngineSpec, command, environment
from state_store.child_process import ChildProcess
from tests.gateway.grpc_rig import numbers, parameters, strings, text_of
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


def config_of(pair: tuple[Vllm, Vllm], path: Path, grpc_port: int) -> Path:
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
                "server": {"port": 0, "grpc_port": grpc_port},
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
        self.ending, self.completion_tokens, self.replica = "", 0, ""
        self.is_due = asyncio.Event()
        self._kill_after = kill_after

    def hear(self, text: str, ids: list[int]) -> None:
        self.text += text
        self.ids += ids
        self.events += 1
        if self.events > self._kill_after:
            self.is_due.set()

    async def listen(self, url: str, prompt: str, wants_ids: bool) -> None:
        """Asks, and hears the answer to its end."""
        raise NotImplementedError


class HeardOverHttp(Heard):
    """Server-sent events."""

    async def listen(self, url: str, prompt: str, wants_ids: bool) -> None:
        body = asking("chat", prompt, stream=True, stream_options={"include_usage": True})
        if wants_ids:
            body["return_token_ids"] = True
        async with (
            aiohttp.ClientSession() as http,
            http.post(url + "/v1/chat/completions", json=body) as answer,
        ):
            assert answer.status == 200
            self.replica = answer.headers["x-served-replica"]
            async for line in answer.content:
                if line.startswith(b"data: "):
                    self._event(line[6:].strip())

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.ending += "whole"
            return
        event = orjson.loads(data)
        if "error" in event:
            self.ending += f"error {event['error']}"
            return
        self.completion_tokens = (event.get("usage") or {}).get("completion_tokens", self.completion_tokens)
        for choice in event["choices"]:
            self.hear(choice["delta"].get("content") or "", choice.get("token_ids") or [])


class HeardOverGrpc(Heard):
    """ModelStreamInfer, through Triton's client."""

    async def listen(self, url: str, prompt: str, wants_ids: bool) -> None:
        parts: asyncio.Queue[tuple[Any, Any]] = asyncio.Queue()
        loop, client = asyncio.get_running_loop(), InferenceServerClient(url)

        def take(result: Any, error: Any) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, (result, error))

        client.start_stream(take)
        client.async_stream_infer(
            "chat", inputs_of(prompt), parameters=parameters_with(wants_ids), enable_empty_final_response=True
        )
        while not self.ending:
            result, error = await parts.get()
            if error is not None:
                self.ending += f"error {error}"
            else:
                self._response(result)
        await asyncio.to_thread(client.stop_stream)
        client.close()
        assert parts.empty()

    def _response(self, result: Any) -> None:
        told = parameters(result.get_response())
        self.replica = self.replica or told["x-served-replica"]
        self.completion_tokens = told.get("completion_tokens", self.completion_tokens)
        ids = result.as_numpy("token_ids")
        if told[FINAL]:
            self.ending += "whole"
        else:
            self.hear(text_of(result), [] if ids is None else [int(i) for i in ids])


def inputs_of(prompt: str) -> list[Any]:
    """The same as `asking`, as Triton's client takes it."""
    messages = orjson.dumps([{"role": "user", "content": prompt}]).decode()
    return [
        strings("messages", messages),
        numbers("max_tokens", "INT32", TOKENS),
        numbers("temperature", "FP32", 0.0),
    ]


def parameters_with(wants_ids: bool) -> Json:
    usage = '{"include_usage": true}'
    return {"ignore_eos": True, "return_token_ids": wants_ids, "stream_options": usage}


class Kill(NamedTuple):
    """Over what the stream that loses its replica is heard, and whether with its token ids."""

    over: type[Heard]
    wants_ids: bool


KINDS = tuple(Kill(over, wants_ids) for wants_ids in (False, True) for over in (HeardOverHttp, HeardOverGrpc))


async def one_kill(heard: Heard, url: str, pair: tuple[Vllm, Vllm], prompt: str, wants_ids: bool) -> Vllm:
    """A stream whose replica is killed when it is due; the replica."""
    listening = asyncio.create_task(heard.listen(url, prompt, wants_ids))
    due = asyncio.create_task(heard.is_due.wait())
    await asyncio.wait((listening, due), timeout=60.0, return_when=asyncio.FIRST_COMPLETED)
    assert due.done(), f"{heard.ending} after {heard.events} events: {listening}"
    victim = next(e for e in pair if str(e.port) in heard.replica)
    await victim.kill()
    await asyncio.wait_for(listening, 120.0)
    return victim


async def run_kills(pair: tuple[Vllm, Vllm], path: Path, kills: list[Kill]) -> None:
    rng, grpc_port = Random(7), free_port()
    config = config_of(pair, path, grpc_port)
    gateway = ServerProcess(sys.executable, "-m", "deploy", "serve", "-c", str(config))
    async with gateway, aiohttp.ClientSession() as http:
        urls = {HeardOverHttp: gateway.url, HeardOverGrpc: f"127.0.0.1:{grpc_port}"}
        expected = {prompt: await undisturbed(http, pair[0], prompt) for prompt in PROMPTS}
        victim: Vllm | None = None
        for number, (over, wants_ids) in enumerate(kills):
            if victim is not None:
                await victim.start()
                await eventually(lambda: all_ready(http, gateway.url), 60.0)
            prompt, heard = PROMPTS[number % len(PROMPTS)], over(rng.randrange(1, TOKENS - 8))
            victim = await one_kill(heard, urls[over], pair, prompt, wants_ids)
            text, ids = expected[prompt]
            assert heard.ending == "whole"
            assert heard.text == text
            assert heard.ids == (ids if wants_ids else [])
            assert heard.completion_tokens == TOKENS


async def all_ready(http: aiohttp.ClientSession, url: str) -> bool:
    async with http.get(url + "/status") as answer:
        tiers = (await answer.json())["models"]["chat"]["tiers"]
        return all(r["state"] == "ready" for r in tiers[0]["replicas"])


@pytest.mark.real
@pytest.mark.timeout(600)
async def test_a_stream_goes_on_token_for_token_when_its_vllm_is_killed(
    pair: tuple[Vllm, Vllm], tmp_path: Path
) -> None:
    await run_kills(pair, tmp_path / "gateway.yaml", [KINDS[0], KINDS[3]])


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_ten_kills_lose_repeat_and_change_nothing(pair: tuple[Vllm, Vllm], tmp_path: Path) -> None:
    await run_kills(pair, tmp_path / "gateway.yaml", [KINDS[number % 4] for number in range(10)])
