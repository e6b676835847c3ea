"""What a rig measures: simulated replicas, a small tier, and a front that spreads requests over them.

Fronts: `graceway` (`graceway serve`), one of the other gateways (see `peers`), `naive` (a proxy without any protection)
and `direct` (no front: the client takes the replicas in turn).
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadtests.cut_proxy import Proxy, proxy_to
from loadtests.peers import PEERS, PeerProcess
from loadtests.processes import EngineProcess, RedisProcess, ServerProcess
from loadtests.redis_groups import Sentinels, running_sentinels
from loadtests.stepped_clock import write_step

FRONTS = ("graceway", *PEERS, "naive", "direct")
MODEL = "m"
_CONFIG = """\
server: {{host: 127.0.0.1, port: 0, grpc_port: {grpc_port}}}
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
    sentinels: Literal["", "asked", "ignored"] = ""
    """Whether the store has a replica and Sentinels, and whether the gateways ask those where it is."""
    zones: str = "ab"
    """Of the replicas, in turn; one letter each."""
    has_ways: bool = False
    """Whether between the front, each replica and the store there is a network that can be broken."""
    clock: Literal["", "steps", "steps timers"] = ""
    """Whether the first gateway's clock can be stepped, and whether what it times follows."""
    grpc_port: int = 0
    """Of a gateway that stands alone; 0: none listens."""


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
    ways: tuple[Proxy, ...] = ()
    """To each replica, where the plan has ways."""
    store_way: Proxy | None = None
    store_url: str = "memory"
    """As the gateways are told."""
    sentinels: Sentinels | None = None
    clock: Path | None = None
    """Of the first gateway: how far it is ahead; see `stepped_clock`."""

    @property
    def replica_urls(self) -> tuple[str, ...]:
        """Where the front goes."""
        return tuple(way.url for way in self.ways) or tuple(engine.url for engine in self.replicas)

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
        store = await _store(plan, stack)
        ways = [await _way(engine.url, stack) for engine in engines] if plan.has_ways else []
        places = [way.url for way in ways] or [engine.url for engine in engines]
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config, clock = folder / "fleet.yaml", folder / "clock" if plan.clock else None
        config.write_text(graceway_config(plan, places, small, store.url))
        if clock is not None:
            write_step(clock, 0.0)
        fronts = [
            await stack.enter_async_context(front) for front in _fronts(plan, places, store, config, clock)
        ]
        yield Fleet(
            replicas=tuple(engines),
            small=small,
            front=fronts[0] if fronts else None,
            urls=tuple(server.url for server in fronts) or tuple(places),
            fronts=tuple(fronts),
            store=store.server,
            config=config,
            ways=tuple(ways),
            store_way=store.way,
            store_url=store.url,
            sentinels=store.sentinels,
            clock=clock,
        )


@dataclass(frozen=True, slots=True)
class _Store:
    """What keeps the gateways' state, and where they find it."""

    url: str = "memory"
    server: RedisProcess | None = None
    way: Proxy | None = None
    sentinels: Sentinels | None = None


async def _store(plan: Plan, stack: AsyncExitStack) -> _Store:
    if plan.sentinels:
        group = await stack.enter_async_context(running_sentinels())
        url = group.url if plan.sentinels == "asked" else group.master.url
        return _Store(url, group.master, sentinels=group)
    if not plan.has_store:
        return _Store()
    server = await stack.enter_async_context(RedisProcess(*plan.store_arguments))
    if not plan.has_ways:
        return _Store(server.url, server)
    way = await _way(server.url, stack)
    return _Store(way.url.replace("http", "redis"), server, way)


async def _way(url: str, stack: AsyncExitStack) -> Proxy:
    return await stack.enter_async_context(proxy_to(int(url.rpartition(":")[2])))


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
    plan: Plan, urls: list[str], store: _Store, config: Path, clock: Path | None
) -> list[ServerProcess]:
    if plan.front == "direct":
        return []
    if plan.front in PEERS:
        return [PeerProcess(PEERS[plan.front], MODEL, urls, config.parent)]
    if plan.front == "naive":
        return [NaiveFront(urls, store.url)]
    more = [GatewayProcess(config) for _ in range(plan.gateways - 1)]
    return [GatewayProcess(config, clock, has_stepping_timers=plan.clock == "steps timers"), *more]


def graceway_config(
    plan: Plan, urls: Sequence[str], small: EngineProcess | None, store_url: str = "memory"
) -> str:
    """The YAML that puts Graceway in front of replicas at these URLs."""
    replicas = "\n".join(
        f'          - {{url: "{url}", zone: {plan.zones[number % len(plan.zones)]}}}'
        for number, url in enumerate(urls)
    )
    config = _CONFIG.format(
        model=MODEL, replicas=replicas, slo=plan.slo, store=store_url, grpc_port=plan.grpc_port
    )
    if plan.limits_slots:
        config += f"        slots: {plan.slots}\n"
    if plan.more_tier:
        config += f"        {plan.more_tier}\n"
    if small is not None:
        config += _SMALL_TIER.format(url=small.url)
    return config + plan.more_config


class GatewayProcess(ServerProcess):
    """`graceway serve` on a config, on the same port through restarts; by a clock that steps, where it has one."""

    def __init__(self, config: Path, clock: Path | None = None, *, has_stepping_timers: bool = False) -> None:
        # `graceway` itself, but from the sources that are here, wherever another checkout is installed.
        timers = ("--timers",) if has_stepping_timers else ()
        by_clock = () if clock is None else ("-m", "loadtests.stepped_clock", *timers, str(clock))
        super().__init__(sys.executable, *(by_clock or ("-m",)), "deploy", "serve", "-c", str(config))
        self._first_command = self._command

    async def start(self) -> None:
        await super().start()
        self._command = (*self._first_command, "--port", self.url.rpartition(":")[2])


class NaiveFront(ServerProcess):
    """The proxy without protections, with a store if there is one."""

    def __init__(self, replicas: list[str], store_url: str) -> None:
        more = () if store_url == "memory" else ("--store", store_url)
        super().__init__(sys.executable, "-m", "loadtests.naive_front", *more, *replicas)
