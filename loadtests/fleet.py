"""What a rig measures: simulated replicas, a small tier, and a front that spreads requests over them.

Fronts: `graceway` (`graceway serve`), `vllm-router` (the Rust router from the package index, in a virtual
environment of its own under build/), and `direct` (no front: the client takes the replicas in turn).
"""

import asyncio
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from loadtests.processes import ROOT, EngineProcess, ServerProcess

FRONTS = ("graceway", "vllm-router", "direct")
MODEL = "m"
_ROUTER_VENV = ROOT / "build" / "vllm-router"
_ROUTER_PACKAGE = "vllm-router==0.1.17"
_CONFIG = """\
server: {{host: 127.0.0.1, port: 0, grpc_port: 0}}
state_store: {{url: memory}}
models:
  {model}:
    tiers:
      - name: primary
        backend: openai
        served_model: {model}
        replicas:
{replicas}
        slots: {slots}
        slo: {{ttft_s: 1.0, itl_s: 0.2}}
"""
_SMALL_TIER = """\
      - name: small
        backend: openai
        served_model: small
        replicas: [{{url: "{url}"}}]
        slots: 64
        quality: 0.7
        slo: {{ttft_s: 1.0, itl_s: 0.2}}
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start."""

    front: str = "graceway"
    replicas: int = 2
    slots: int = 8
    token_ms: float = 20.0
    prefill_tokens_per_s: float = 20_000.0
    has_small_tier: bool = True
    small_token_ms: float | None = None
    """None: as slow as the primary."""
    more_config: str = ""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What runs. `urls` is where clients go."""

    replicas: tuple[EngineProcess, ...]
    small: EngineProcess | None
    front: ServerProcess | None
    urls: tuple[str, ...]

    def engines(self) -> tuple[EngineProcess, ...]:
        return self.replicas if self.small is None else (*self.replicas, self.small)


@asynccontextmanager
async def running(plan: Plan) -> AsyncIterator[Fleet]:
    """Starts a fleet, and leaves nothing of it behind."""
    async with AsyncExitStack() as stack:
        engines = [_replica(plan, f"replica-{number}") for number in range(plan.replicas)]
        small = _small(plan) if plan.has_small_tier and plan.front == "graceway" else None
        everything = engines if small is None else [*engines, small]
        for engine in everything:
            stack.push_async_callback(engine.stop)
        await asyncio.gather(*(engine.start() for engine in everything))
        front = await _front(plan, engines, small, stack)
        urls = tuple(engine.url for engine in engines) if front is None else (front.url,)
        yield Fleet(tuple(engines), small, front, urls)


def _replica(plan: Plan, name: str) -> EngineProcess:
    return EngineProcess(
        slots=plan.slots,
        token_ms=plan.token_ms,
        prefill_tokens_per_s=plan.prefill_tokens_per_s,
        served_model=MODEL,
        name=name,
    )


def _small(plan: Plan) -> EngineProcess:
    token_ms = plan.token_ms if plan.small_token_ms is None else plan.small_token_ms
    return EngineProcess(slots=64, token_ms=token_ms, served_model="small", name="small")


async def _front(
    plan: Plan, engines: list[EngineProcess], small: EngineProcess | None, stack: AsyncExitStack
) -> ServerProcess | None:
    if plan.front == "direct":
        return None
    if plan.front == "vllm-router":
        return await stack.enter_async_context(RouterProcess([engine.url for engine in engines]))
    config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "fleet.yaml"
    config.write_text(graceway_config(plan, engines, small))
    return await stack.enter_async_context(GatewayProcess(config))


def graceway_config(plan: Plan, engines: list[EngineProcess], small: EngineProcess | None) -> str:
    """The YAML that puts Graceway in front of these engines."""
    zones = "ab"
    replicas = "\n".join(
        f'          - {{url: "{engine.url}", zone: {zones[number % 2]}}}'
        for number, engine in enumerate(engines)
    )
    config = _CONFIG.format(model=MODEL, replicas=replicas, slots=plan.slots)
    if small is not None:
        config += _SMALL_TIER.format(url=small.url)
    return config + plan.more_config


class GatewayProcess(ServerProcess):
    """`graceway serve` on a config."""

    def __init__(self, config: Path) -> None:
        super().__init__(str(Path(sys.executable).parent / "graceway"), "serve", "-c", str(config))


class RouterProcess(ServerProcess):
    """The Rust router. It prints nothing when it serves, so it is asked until it does."""

    def __init__(self, workers: list[str]) -> None:
        self._port = _free_port()
        super().__init__(
            str(_ROUTER_VENV / "bin" / "vllm-router"),
            *("--host", "127.0.0.1", "--port", str(self._port), "--policy", "round_robin"),
            *("--prometheus-port", str(_free_port()), "--log-level", "error"),
            *("--worker-urls", *workers),
        )

    async def start(self) -> None:
        await install_router()
        await super().start()

    async def _until_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{self._port}"
        self._drain = asyncio.create_task(self._keep_output(self._process.stdout))
        async with aiohttp.ClientSession() as http:
            while True:
                if await _answers(http, f"{self.url}/v1/models"):
                    return
                await asyncio.sleep(0.1)


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


async def install_router() -> None:
    """Puts the router where this module looks for it, once."""
    if (_ROUTER_VENV / "bin" / "vllm-router").exists():
        return
    shutil.rmtree(_ROUTER_VENV, ignore_errors=True)
    sys.stderr.write(f"installing {_ROUTER_PACKAGE} into {_ROUTER_VENV}\n")
    await _run(sys.executable, "-m", "venv", str(_ROUTER_VENV))
    await _run(str(_ROUTER_VENV / "bin" / "pip"), "install", "--quiet", _ROUTER_PACKAGE)


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, complaints = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{complaints.decode(errors='replace')}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
