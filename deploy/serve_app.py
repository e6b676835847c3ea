"""The Ray Serve application: the gateway as its ingress, and a deployment for each tier whose replicas we start.

Serve places, restarts and upgrades these; no token passes through it. Each tier's replicas register in the state
store, where the gateway finds them, so neither waits for the other.
"""

import asyncio
import hashlib
import os
import re
import secrets
import socket
import time
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve import Application

from deploy import handover, ingress, leaving_nodes, serve_network
from deploy.compose import Node, build_gateway, build_supervisor, supervisors_store
from deploy.config import DEFAULT_SLOTS, Config, Tier, is_local, load_config, to_gateway_spec
from deploy.config_source import ParentsFile, read_note
from deploy.grpc_server import GrpcServer
from deploy.http_server import DRAIN_S
from deploy.log import begin_log_of_system
from deploy.serve_scaling import COLD_START_STAT, LoadSource, autoscaling_config
from gateway.app import Gateway
from gateway.config_standing import ConfigStanding, NewConfig
from gateway.specs import LogSpec
from replicas.autoscaling.load import load_in, to_stats
from replicas.autoscaling.policy import ScalingSpec
from replicas.mig.hold import SliceHold
from replicas.notice import KEPT_S, heard, of_host
from replicas.succession import LONGEST_S, until_replaced
from replicas.supervisor import Supervisor

APPLICATION = "graceway"
_HEALTH_CHECK_S = 5.0
_TIER_DRAIN_S = 10.0
_GRPC_DRAIN_S = 20.0
"""Less than Serve waits for a replica to end."""
_SOME_CPU = 0.001
"""CPUs are not rationed: engines share them by their own settings, and a small machine has too few to count. But an actor
that asks for nothing at all is put anywhere by Ray, whatever node or spreading it is told."""


class GatewayReplica:
    """One gateway. Its config is Serve's user config, so that a change of it needs no new process."""

    def __init__(self, store_url: str, _tiers: list[Any]) -> None:
        serve_network.keep_to_loopback()
        self._store_url = store_url
        self._gateway: Gateway | None = None
        self._grpc: GrpcServer | None = None

    async def reconfigure(self, user_config: dict[str, str]) -> None:
        """Serve calls this once before the first request, and again whenever the config has changed."""
        config = Config.model_validate_json(user_config["config"])
        standing = read_note(user_config["standing"]) if user_config.get("standing") else None
        if self._gateway is not None:
            standing = standing or ConfigStanding(time.time())
            await self._gateway.follow(to_gateway_spec(config), standing)
            return
        lines = begin_log_of_system(config.log)
        self._gateway = build_gateway(config, self._store_url, read_config_of_system, lines)
        self._gateway.config = standing or self._gateway.config
        await self._gateway.start()
        ingress.attach(self._gateway.asgi)
        if config.server.grpc_port:
            # Past Serve, whose gRPC proxy takes unary calls through handles. An upgrade's two gateways share the port.
            self._grpc = GrpcServer(
                self._gateway, config.server.host, config.server.grpc_port, config.server.tls
            )
            await self._grpc.start()

    def __serve_build_asgi_app__(self) -> Any:
        return ingress.with_lifespan(ingress.attached)

    async def __del__(self) -> None:
        if self._grpc is not None:
            self._grpc.begin_drain(_GRPC_DRAIN_S)
            await self._grpc.drained()
        if self._gateway is not None:
            await self._gateway.stop()


class TierReplica:
    """The supervisor of one replica's engine. Serve has it running at once, the gateway only when it is ready."""

    def __init__(self, model: str, store_url: str) -> None:
        serve_network.keep_to_loopback()
        self._model = model
        self._store_url = store_url
        self._store = supervisors_store(store_url)
        self._hold: SliceHold | None = None
        self._losing: asyncio.Task[str] | None = None
        self._running: asyncio.Task[None] | None = None

    async def reconfigure(self, user_config: dict[str, str]) -> None:
        """Serve calls this before all else, and again when only the log changed: a changed tier gets new replicas."""
        if self._running is None:
            begin_log_of_system(LogSpec.model_validate_json(user_config["log"]))
            await self._start(Tier.model_validate_json(user_config["tier"]))

    async def _start(self, tier: Tier) -> None:
        self._tier = tier.name
        name = f"{tier.name}-{serve.get_replica_context().replica_id.unique_id}"
        node = Node(serve_network.engine_host(), serve_network.zone())
        if isinstance(tier.gpu, str):
            self._hold = SliceHold(self._store, socket.gethostname(), name, tier.gpu)
            slice_ = await self._hold.take()
            tier = tier.model_copy(update={"environment": tier.environment | slice_.environment})
            node = replace(node, mig_slice=slice_.in_words)
            self._losing = asyncio.create_task(self._hold.keep(), name=f"slice of {name}")
        self._supervisor: Supervisor = build_supervisor(self._model, tier, name, self._store_url, node)
        self._running = asyncio.create_task(self._supervisor.run(), name=f"supervisor of {name}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The load of the whole tier as its gateways see it, and what a start took here."""
        load = await load_in(self._store, self._model, self._tier)
        measured = self._supervisor.cold_start_s
        cold_start = {} if measured is None else {COLD_START_STAT: measured}
        return cold_start if load is None else to_stats(load) | cold_start

    async def check_health(self) -> None:
        """The engine's health is the supervisor's business; Serve replaces a replica whose supervisor ended."""
        if self._losing is not None and self._losing.done():
            raise RuntimeError(f"the slice is lost: {self._losing.result()}")
        if self._running is not None and self._supervisor.is_vacated and self._running.done():
            await self._keep_others_away()
            raise RuntimeError("it was told that it will be taken away")
        if self._running is not None and self._running.done():
            raise RuntimeError(f"the supervisor ended: {self._running.exception()}")

    async def _keep_others_away(self) -> None:
        """From this node, if all of it will be taken away."""
        notice = await heard(self._store, of_host(serve_network.engine_host()))
        if notice is not None:
            node = ray.get_runtime_context().get_node_id()
            leaving_nodes.announce(node, notice.left_s(time.time()) + KEPT_S)

    async def __del__(self) -> None:
        await until_replaced(self._supervisor, self._store)
        await self._supervisor.drain(_TIER_DRAIN_S)
        await self._supervisor.stop()
        if self._hold is not None and self._losing is not None:
            self._losing.cancel()
            await self._hold.release()
        await self._store.close()


def read_config_of_system() -> NewConfig:
    """For `POST /admin/reload`: the file from which `graceway up` runs, which is told to take it over, too."""
    path, home, pid = (os.environ.get(name) for name in (handover.CONFIG, handover.HOME, handover.PID))
    if path is None or home is None or pid is None:
        raise ValueError("this gateway runs on a cluster: send SIGHUP to `graceway up` instead")
    return ParentsFile(Path(path), Path(home), int(pid), "up").read()


def build(args: dict[str, str]) -> Application:
    """For a Serve config file: `import_path: deploy.serve_app:build`, `args: {config: FILE}`.

    Raises:
        ConfigError, OSError: the file can't be used.
        ValueError: its state store is one process's own.
    """
    config = load_config(args["config"])
    if config.state_store.url in ("embedded", "memory"):
        raise ValueError("a cluster needs a state store that all reach: set state_store.url to redis://…")
    return application(config, config.state_store.url)


def application(config: Config, store_url: str, standing: str = "") -> Application:
    """What `serve.run` takes. Deployments whose version stays the same are left alone by a later run.

    `standing` is the note of how the config stands to its file; none where there is no file that anybody follows.
    """
    tiers = [_tier(model, tier, store_url, config.log) for model, tier in config.managed_tiers()]
    gateway = serve.deployment(serve.ingress()(GatewayReplica)).options(
        name="gateway",
        version=_gateway_version(config, store_url),
        user_config={
            "config": _with_whole_paths(_guarded(config)).model_dump_json(),
            "standing": standing,
        },
        num_replicas=config.server.gateways,
        # One more than there are to be: an old gateway goes when a new one serves, one after the other.
        max_surge_percent=100 // config.server.gateways,
        ray_actor_options={"num_cpus": _SOME_CPU},
        # As long as a stream may last: those of a gateway that goes end on it.
        graceful_shutdown_timeout_s=max(DRAIN_S, config.request_timeout_s) + _GRPC_DRAIN_S,
        health_check_period_s=_HEALTH_CHECK_S,
        _internal=True,
    )
    return gateway.bind(store_url, tiers)


def _gateway_version(config: Config, store_url: str) -> str:
    """Of what a running gateway can't take over: where this changes, new ones take the place of those that run."""
    tiers = [tier.name for _, tier in config.managed_tiers()]
    server = config.server
    return _version(metadata.version("graceway"), store_url, tiers, server.grpc_port, server.tls)


def _tier(model: str, tier: Tier, store_url: str, log: LogSpec) -> Application:
    plain = _at_its_place(tier).model_dump_json()
    deployment = serve.deployment(TierReplica).options(
        name=_deployment_name(model, tier.name),
        version=_version(model, plain, store_url),
        user_config={"tier": plain, "log": log.model_dump_json()},
        **_count(model, tier, store_url),
        ray_actor_options={"num_cpus": _SOME_CPU, **_accelerator(tier)},
        graceful_shutdown_timeout_s=LONGEST_S + DRAIN_S,
        health_check_period_s=_HEALTH_CHECK_S,
        _internal=True,
    )
    return deployment.bind(model, store_url)


def _accelerator(tier: Tier) -> dict[str, Any]:
    """What Ray counts of a node's GPUs for each replica."""
    if isinstance(tier.gpu, str):
        return {"resources": {f"mig-{tier.gpu}": 1}}
    return {"num_gpus": tier.gpu}


def _count(model: str, tier: Tier, store_url: str) -> dict[str, Any]:
    """How many replicas, as Serve is told."""
    scale = tier.scale
    if scale.min == scale.max:
        return {"num_replicas": scale.min + scale.standbys}
    spec = ScalingSpec(
        min=scale.min,
        max=scale.max,
        standbys=scale.standbys,
        wait_slo_s=tier.slo.ttft_s,
        down_window_s=scale.down_after_s,
        to_zero_after_s=scale.to_zero_after_s,
    )
    source = LoadSource(store_url, model, tier.name)
    slots = tier.slots or DEFAULT_SLOTS
    return {"autoscaling_config": autoscaling_config(spec, slots, scale.cold_start_s, source)}


def _at_its_place(tier: Tier) -> Tier:
    """With a local model's whole path: replicas need not run in the folder in which the config was written."""
    model = Path(tier.model or "")
    return tier.model_copy(update={"model": str(model.absolute())}) if model.exists() else tier


def _guarded(config: Config) -> Config:
    """HAProxy makes every client look local, so where others can reach it, nobody administers without a key."""
    if config.admin_key is not None or is_local(config.server.host):
        return config
    return config.model_copy(update={"admin_key": secrets.token_hex(32)})


def _with_whole_paths(config: Config) -> Config:
    """With certificates where gateways find them, whichever folder they run in."""
    tls = config.server.tls
    if tls is None:
        return config
    whole = {name: str(Path(path).absolute()) for name, path in tls if path is not None}
    server = config.server.model_copy(update={"tls": tls.model_copy(update=whole)})
    return config.model_copy(update={"server": server})


def _deployment_name(model: str, tier: str) -> str:
    """Serve takes few characters in a name, models' names have any."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", model)
    return f"{plain}.{tier}" if plain == model else f"{plain}-{_version(model)[:6]}.{tier}"


def _version(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
