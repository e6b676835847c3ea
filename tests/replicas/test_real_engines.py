"""Real llama.cpp and real vLLM under a supervisor: start, answer, die, come back."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest

from replicas.engines import EngineSpec
from replicas.supervisor import ReplicaSpec, Supervisor
from state_store.memory import MemoryStateStore

MODELS = Path(__file__).parents[2] / "models"
BACK_WITHIN_S = 120.0


@pytest.fixture(autouse=True)
def models() -> None:
    assert (MODELS / "smollm2-135m").is_dir(), "run `make setup`"


@asynccontextmanager
async def supervised(engine: EngineSpec, folder: Path) -> AsyncIterator[Supervisor]:
    spec = ReplicaSpec("r-0", "chat", "primary", engine)
    supervisor = Supervisor(spec, MemoryStateStore(), progress=print, log_folder=folder)
    running = asyncio.create_task(supervisor.run())
    try:
        async with asyncio.timeout(spec.start_timeout_s):
            await supervisor.until_ready()
        yield supervisor
    finally:
        family = [psutil.Process(supervisor.engine_pid), *_below(supervisor.engine_pid)]
        await supervisor.stop()
        await running
    assert not any(process.is_running() for process in family)


def _below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


async def until(condition: Callable[[], bool], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - the condition is another process's
            await asyncio.sleep(0.01)


async def answer(supervisor: Supervisor, question: str) -> str:
    served_model = supervisor.record().served_model
    body = {"model": served_model, "messages": [{"role": "user", "content": question}]}
    body |= {"temperature": 0, "max_tokens": 16}
    url = supervisor.url + "/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        text: str = (await response.json())["choices"][0]["message"]["content"]
        return text


@pytest.mark.real
async def test_llamacpp(tmp_path: Path) -> None:
    model = str(MODELS / "smollm2-135m-q4.gguf")
    async with supervised(EngineSpec("llamacpp", model, "small", slots=2), tmp_path) as supervisor:
        said = await answer(supervisor, "What is the capital of France?")
        assert len(said.split()) > 1
        load = await supervisor.load()
        assert load is not None
        assert (load.is_idle, load.progress > 0) == (True, True)
        os.kill(supervisor.engine_pid, signal.SIGKILL)
        await until(lambda: supervisor.state == "down", within_s=1.0)
        await until(lambda: supervisor.is_ready, within_s=30.0)
        assert await answer(supervisor, "What is the capital of France?") == said
        assert await supervisor.drain(5.0)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(500)
async def test_vllm_whose_core_is_killed_is_back_within_two_minutes(tmp_path: Path) -> None:
    model = str(MODELS / "smollm2-135m")
    async with supervised(EngineSpec("vllm", model, "smollm2", slots=4), tmp_path) as supervisor:
        assert "Paris" in await answer(supervisor, "What is the capital of France?")
        first = _below(supervisor.engine_pid)
        core = next(process for process in first if "EngineCore" in " ".join(process.cmdline()))
        killed_at = time.monotonic()
        core.kill()
        await until(lambda: supervisor.state == "down", within_s=1.0)
        await until(lambda: supervisor.is_ready, within_s=BACK_WITHIN_S)
        print(f"back after {time.monotonic() - killed_at:.1f} s")
        assert not any(process.is_running() for process in first)
        assert "Paris" in await answer(supervisor, "What is the capital of France?")
        assert await supervisor.drain(5.0)
