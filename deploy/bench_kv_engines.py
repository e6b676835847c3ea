"""Real vLLM servers on this machine for the benches of KV blocks: started, asked, killed."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType

import aiohttp
import orjson
import psutil

from replicas.engines import EngineSpec, command, environment
from replicas.kv.settings import NO_KV, KvSettings
from state_store.child_process import ChildProcess

STARTS_WITHIN_S = 400.0
FIRST_TOKEN, TOKEN_COUNT = 100, 40_000
"""Of the demonstration model's tokens: those that are words."""


@dataclass(frozen=True, slots=True)
class Told:
    """What an engine or a gateway said, and when: `times` are seconds from asking, one an event."""

    ids: tuple[int, ...]
    times: tuple[float, ...]
    replica: str = ""
    """Which one, where a gateway says so."""

    @property
    def ttft_s(self) -> float:
        return self.times[0]

    @property
    def longest_gap_s(self) -> float:
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


class Engine:
    """One vLLM on the CPU, in float32: there a prefix has one continuation, restored or computed."""

    def __init__(
        self,
        model: Path,
        port: int,
        log_path: Path,
        kv: KvSettings = NO_KV,
        kv_url: str = "",
        extra_args: tuple[str, ...] = (),
    ) -> None:
        self.port, self.url, self._log_path = port, f"http://127.0.0.1:{port}", log_path
        extra = ("--dtype", "float32", *extra_args)
        self._spec = EngineSpec("vllm", str(model), "m", slots=4, max_model_len=2560, extra_args=extra)
        self._spec = replace(self._spec, kv=kv, kv_url=kv_url if kv.strategy != "recompute" else "")
        self._child: ChildProcess | None = None

    async def start(self) -> None:
        """Returns when it is ready."""
        cores = len(os.sched_getaffinity(0))
        self._child = await ChildProcess.start(
            command(self._spec, self.port),
            env=environment(self._spec, os.environ, cores),
            log_path=self._log_path,
        )
        async with asyncio.timeout(STARTS_WITHIN_S), aiohttp.ClientSession() as http:
            while not await _is_healthy(http, self.url):  # noqa: ASYNC110 - the condition is another process's
                await asyncio.sleep(0.5)

    async def kill(self) -> None:
        """SIGKILL to all its processes at once."""
        assert self._child is not None
        for process in self._family():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        await self._child.gone()

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop()

    def cpu_s(self) -> float:
        """CPU seconds of all its processes up to now."""
        return sum(_cpu_s(process) for process in self._family())

    def cpu_s_of(self, part: str) -> float:
        """The same, of those whose name vLLM begins with `part`."""
        return sum(_cpu_s(process) for process in self._family() if process.name().startswith(part))

    async def metrics(self, http: aiohttp.ClientSession) -> Counter[str]:
        """The sum of each of its metrics' samples, by name; 0 for one that it has not."""
        async with http.get(self.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        found: Counter[str] = Counter()
        for line in lines:
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name.partition("{")[0]] += float(value)  # type: ignore[assignment]  # Counter is typed for whole numbers
        return found

    def _family(self) -> list[psutil.Process]:
        assert self._child is not None
        first = psutil.Process(self._child.pid)
        return [first, *first.children(recursive=True)]


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    prompt: list[int],
    tokens: int,
    *,
    model: str = "m",
    session: str = "",
    begun: asyncio.Event | None = None,
    extra: Mapping[str, object] = MappingProxyType({}),
) -> Told:
    """A greedy text completion of token ids, streamed. `begun` is set when a quarter of it was said."""
    asked = {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    asked |= {"stream": True, "return_token_ids": True, **extra}
    start = time.perf_counter()
    ids: list[int] = []
    times: list[float] = []
    headers = {"x-session-id": session} if session else {}
    async with http.post(url + "/v1/completions", json=asked, headers=headers) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if new := _new_ids(line):
                ids += new
                times.append(time.perf_counter() - start)
            if begun is not None and len(ids) >= tokens // 4:
                begun.set()
    return Told(tuple(ids), tuple(times), answer.headers.get("x-served-replica", ""))


def _new_ids(line: bytes) -> list[int]:
    """The token ids in a line of an event stream. Raises RuntimeError for an error."""
    if not line.startswith(b"data: {"):
        return []
    event = orjson.loads(line[6:])
    if "error" in event:
        raise RuntimeError(str(event["error"]))
    return [token for choice in event["choices"] for token in choice.get("token_ids") or ()]


def _cpu_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def random_prompt(rng: Random, tokens: int) -> list[int]:
    return [rng.randrange(FIRST_TOKEN, FIRST_TOKEN + TOKEN_COUNT) for _ in range(tokens)]


async def _is_healthy(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url + "/health") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
