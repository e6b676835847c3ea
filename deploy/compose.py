"""The composition root: from a config to stores, gateways and supervisors, wired and not yet started."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from deploy.config import DEFAULT_SLOTS, LOOPBACK, Config, Tier, to_gateway_spec
from gateway.app import Gateway
from gateway.config_standing import NewConfig
from gateway.line_writer import LineWriter
from replicas.engines import EngineKind, EngineSpec
from replicas.kv.settings import KvSettings
from replicas.probe import KnownPrompt
from replicas.supervisor import ReplicaSpec, Supervisor
from state_store.embedded import EmbeddedRedis
from state_store.open import open_state_store
from state_store.protocol import StateStore

log = logging.getLogger("graceway.deploy")

_SUPERVISORS_PATIENCE_S = 1.0
"""With the store: a heartbeat may wait for it, a request may not."""
_STATE_BYTES = 256 * 1024 * 1024
"""Of an embedded store, for all but KV blocks."""


ReadConfig = Callable[[], NewConfig]


def build_gateway(
    config: Config, store_url: str, read_config: ReadConfig, lines: LineWriter | None = None
) -> Gateway:
    """A gateway on the store at `store_url`, which is the config's own or an embedded one's.

    `read_config` is for a reload, as in `deploy/config_source.py`. `lines` is the process's log, from `deploy.log`.
    """
    gateway = Gateway(to_gateway_spec(config), open_state_store(store_url), lines=lines)
    gateway.read_config = partial(asyncio.to_thread, read_config)
    return gateway


def supervisors_store(store_url: str) -> StateStore:
    """The store as a supervisor uses it."""
    return open_state_store(store_url, timeout_s=_SUPERVISORS_PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Node:
    """Where a replica runs."""

    host: str = LOOPBACK
    """Where its engine listens and gateways reach it."""
    zone: str = ""
    mig_slice: str = ""
    """Of its GPU, in words."""


HERE = Node()


def build_supervisor(model: str, tier: Tier, replica: str, store_url: str, node: Node = HERE) -> Supervisor:
    """The supervisor of one replica of a managed tier, which registers in the store at `store_url`."""
    engine = engine_spec(model, tier, store_url)
    probe = tier.probe
    known = KnownPrompt(probe.prompt, probe.expect, probe.max_tokens) if probe else KnownPrompt()
    spec = ReplicaSpec(
        replica=replica,
        model=model,
        tier=tier.name,
        engine=engine,
        known=known,
        host=node.host,
        zone=node.zone,
        mig_slice=node.mig_slice,
    )
    return Supervisor(spec, supervisors_store(store_url))


def engine_spec(model: str, tier: Tier, store_url: str) -> EngineSpec:
    """The engine of a managed tier of `model`; its KV blocks, if it keeps any, are in the store at `store_url`."""
    return EngineSpec(
        kind=cast(EngineKind, tier.backend),
        argv=tier.command,
        model=tier.model or "",
        served_model=tier.served_model or _model_name(tier.model or ""),
        slots=tier.slots or DEFAULT_SLOTS,
        # A slice is the only GPU that its engine sees.
        gpu=1.0 if isinstance(tier.gpu, str) else float(tier.gpu),
        max_model_len=tier.max_model_len,
        extra_args=tier.engine_args,
        env=tier.environment,
        kv=KvSettings(**tier.kv.model_dump(), pool=f"{model}/{tier.name}"),
        kv_url=store_url if tier.keeps_blocks else "",
    )


def _model_name(model: str) -> str:
    """What clients are told has answered: `models/a-1b.gguf` is `a-1b`."""
    return Path(model).name.removesuffix(".gguf")


@asynccontextmanager
async def store_address(config: Config) -> AsyncIterator[str]:
    """The address of the config's store; an embedded one runs as long as the context.

    A store that can't start is no reason not to serve: then state stays in this process, and the log says so.
    """
    if config.state_store.url != "embedded":
        yield config.state_store.url
        return
    redis = EmbeddedRedis(maxmemory_bytes=_STATE_BYTES + config.kv_room_bytes)
    try:
        await redis.start()
        address = redis.url
    except (OSError, RuntimeError, ImportError) as error:
        log.error("the embedded state store does not start (%s); state stays in this process", error)
        address = "memory"
    try:
        yield address
    finally:
        await redis.stop()
