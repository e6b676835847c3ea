"""What a rig measures: simulated replicas, a small tier, and a front that spreads requests over them.

Fronts: `graceway` (`graceway serve`), `vllm-router` (the Rust router from the package index, in a virtual
environment of its own under build/), `naive` (a proxy without any protection) and `direct` (no front: the client
takes the replicas in turn).
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from loadtests.processes import ROOT, EngineProcess, RedisProcess, ServerProcess, free_port

FRONTS = ("graceway", "vllm-router", "naive", "direct")
MODEL = "m"
_ROUTER_VENV = ROOT / "build" / "vllm-router"
_ROUTER_PACKAGE = "vllm-router==0.1.17"
_CONFIG = """\
server: {{host: 127.0.0.1, port: 0, grpc_port: 0}}
state_store: {{url: "{store}"}}
models:
  {model}:
    tiers:
      - name: primary
        backend: openai
        served_model: {model}
        replicas:
{replicas}
        slo: {slo}
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
    """Sections at the top of Graceway's config."""
    more_tier: str = ""
    """Keys of the primary tier."""
    slo: str = "{ttft_s: 1.0, itl_s: 0.2}"
    limits_slots: bool = True
    """Whether Graceway is told how many sequences a replica decodes at once."""
    gateways: int = 1
    has_store: bool = False
    """Whether they share a Redis, rather than keep their state to themselves."""
    store_arguments: tuple[str, ...] = ()
    """Of redis-server."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What runs. `urls` is where clients go, `config` what the gateways read."""

    replicas: tuple[EngineProcess, ...]
    small: EngineProcess | None
    front: ServerProcess | None
    urls: tuple[str, ...]
    fronts: tuple[ServerProcess, ...] = ()
    store: RedisProcess | None = None
    config: Path | None = None

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
        store = (
            await stack.enter_async_context(RedisProcess(*plan.store_arguments)) if plan.has_store else None
        )
        config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "fleet.yaml"
        config.write_text(graceway_config(plan, engines, small, "memory" if store is None else store.url))
        fronts = [await stack.enter_async_context(front) for front in _fronts(plan, engines, store, config)]
        urls = tuple(server.url for server in fronts or engines)
        first = fronts[0] if fronts else None
        yield Fleet(tuple(engines), small, first, urls, tuple(fronts), store, config)


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


def _fronts(
    plan: Plan, engines: list[EngineProcess], store: RedisProcess | None, config: Path
) -> list[ServerProcess]:
    urls = [engine.url for engine in engines]
    if plan.front == "direct":
        return []
    if plan.front == "vllm-router":
        return [RouterProcess(urls)]
    if plan.front == "naive":
        return [NaiveFront(urls, store)]
    return [GatewayProcess(config) for _ in range(plan.gateways)]


def graceway_config(
    plan: Plan, engines: list[EngineProcess], small: EngineProcess | None, store_url: str = "memory"
) -> str:
    """The YAML that puts Graceway in front of these engines."""
    zones = "ab"
    replicas = "\n".join(
        f'          - {{url: "{engine.url}", zone: {zones[number % 2]}}}'
        for number, engine in enumerate(engines)
    )
    config = _CONFIG.format(model=MODEL, replicas=replicas, slo=plan.slo, store=store_url)
    if plan.limits_slots:
        config += f"        slots: {plan.slots}\n"
    if plan.more_tier:
        config += f"        {plan.more_tier}\n"
    if small is not None:
        config += _SMALL_TIER.format(url=small.url)
    return config + plan.more_config


class GatewayProcess(ServerProcess):
    """`graceway serve` on a config, on the same port through restarts."""

    def __init__(self, config: Path) -> None:
        # `graceway` itself, but from the sources that are here, wherever another checkout is installed.
        super().__init__(sys.executable, "-m", "deploy", "serve", "-c", str(config))
        self._first_command = self._command

    async def start(self) -> None:
        await super().start()
        self._command = (*self._first_command, "--port", self.url.rpartition(":")[2])


class NaiveFront(ServerProcess):
    """The proxy without protections, with a store if there is one."""

    def __init__(self, replicas: list[str], store: RedisProcess | None) -> None:
        more = () if store is None else ("--store", store.url)
        super().__init__(sys.executable, "-m", "loadtests.naive_front", *more, *replicas)


class RouterProcess(ServerProcess):
    """The Rust router. It prints nothing when it serves, so it is asked until it does."""

    def __init__(self, workers: list[str]) -> None:
        self._port = free_port()
        super().__init__(
            str(_ROUTER_VENV / "bin" / "vllm-router"),
            *("--host", "127.0.0.1", "--port", str(self._port), "--policy", "round_robin"),
            *("--prometheus-port", str(free_port()), "--log-level", "error"),
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
