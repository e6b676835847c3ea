"""The composition root: from a config to stores, gateways and supervisors, wired and not yet started."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from deploy.config import DEFAULT_SLOTS, Config, Tier, to_gateway_spec
from gateway.app import Gateway
from gateway.line_writer import LineWriter
from gateway.specs import GatewaySpec
from replicas.engines import EngineSpec
from replicas.probe import KnownPrompt
from replicas.supervisor import ReplicaSpec, Supervisor
from state_store.embedded import EmbeddedRedis
from state_store.open import open_state_store

log = logging.getLogger("graceway.deploy")

_SUPERVISORS_PATIENCE_S = 1.0
"""With the store: a heartbeat may wait for it, a request may not."""


ReadConfig = Callable[[], Config]


def build_gateway(
    config: Config, store_url: str, read_config: ReadConfig, lines: LineWriter | None = None
) -> Gateway:
    """A gateway on the store at `store_url`, which is the config's own or an embedded one's.

    `read_config` is for `POST /admin/reload`; it raises ConfigError when the config can't be used. `lines` is the
    process's log, from `deploy.log`.
    """
    gateway = Gateway(to_gateway_spec(config), open_state_store(store_url), lines=lines)

    async def read_spec() -> GatewaySpec:
        return to_gateway_spec(await asyncio.to_thread(read_config))

    gateway.read_spec = read_spec
    return gateway


def build_supervisor(model: str, tier: Tier, replica: str, store_url: str) -> Supervisor:
    """The supervisor of one replica of a managed tier, which registers in the store at `store_url`."""
    engine = EngineSpec(
        kind="llamacpp" if tier.backend == "llamacpp" else "vllm",
        model=tier.model or "",
        served_model=tier.served_model or _model_name(tier.model or ""),
        slots=tier.slots or DEFAULT_SLOTS,
        gpu=float(tier.gpu),
        max_model_len=tier.max_model_len,
        extra_args=tier.engine_args,
        env=tier.environment,
    )
    probe = tier.probe
    known = KnownPrompt(probe.prompt, probe.expect, probe.max_tokens) if probe else KnownPrompt()
    spec = ReplicaSpec(replica=replica, model=model, tier=tier.name, engine=engine, known=known)
    return Supervisor(spec, open_state_store(store_url, timeout_s=_SUPERVISORS_PATIENCE_S))


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
    redis = EmbeddedRedis()
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
