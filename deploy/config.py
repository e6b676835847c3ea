"""The config of a whole system: the request path's shapes from `gateway/specs.py`, and a deployment's own.

`load_config` reads a YAML file into frozen models, or raises `ConfigError` with every fault in it, each by
line and with its mend.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from deploy.config_faults import schema_problems
from deploy.config_rules import rule_problems
from deploy.yaml_lines import Document, Plain, Problem, read_document
from gateway.access import is_loopback
from gateway.specs import (
    BreakerSpec,
    EngineMetricsSpec,
    FeaturesSpec,
    GatewaySpec,
    HealthSpec,
    KeySpec,
    KvSpec,
    LadderSpec,
    LimitsSpec,
    LogSpec,
    ModelSpec,
    RetrySpec,
    RoutingSpec,
    Seconds,
    ServerTlsSpec,
    Spec,
    TierSpec,
    TracingSpec,
)
from replicas.engines import DEFAULT_SLOT_TOKENS

CANNED_TEXT = "I can't answer fully right now. Please try again shortly."
LOOPBACK = "127.0.0.1"
DEFAULT_SLOTS = 8
"""Of a replica that Graceway starts. Servers that already run are not limited unless the config says so."""
_MANAGED = ("vllm", "llamacpp", "command")
_DEFAULT_QUALITY = {"cache": 0.5, "canned": 0.0}


def is_local(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    return host == "localhost" or is_loopback(host)


class ServerSpec(Spec):
    """Where clients reach the gateway."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """0 takes any free port (under `graceway serve` alone, which prints it)."""
    grpc_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """0 turns gRPC off."""
    gateways: Annotated[int, Field(ge=1, le=100)] = 1
    """Under `graceway up`: gateway processes behind the proxy."""
    tls: ServerTlsSpec | None = None


class StateStoreSpec(Spec):
    """Where processes leave what must outlive them: `embedded`, `memory`, or a Redis URL."""

    url: str = Field(default="embedded", repr=False)


class ScaleSpec(Spec):
    """How many replicas a managed tier runs: between these, as its load asks for. `min` 0 lets it go when nobody asks."""

    min: Annotated[int, Field(ge=0)] = 1
    max: Annotated[int, Field(ge=1)] = 1
    standbys: Annotated[int, Field(ge=0)] = 0
    """Replicas beyond those, started and not in rotation until one of the others is lost or more are needed."""
    cold_start_s: Seconds = 60.0
    """From asking for a replica to its first answer, until one has been measured."""
    down_after_s: Seconds = 210.0
    """How long fewer must have been enough before one goes."""
    to_zero_after_s: Seconds = 300.0
    """How long nobody must have asked before the last one goes."""


_KV_BACKENDS = ("vllm", "openai")


class Tier(TierSpec):
    """A tier with what a managed backend (`vllm`, `llamacpp`) needs to start its replicas."""

    model: str | None = None
    """A path or hub id for vllm, a GGUF file for llamacpp, anything for a command."""
    command: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Of backend `command`: starts one server of OpenAI's API. {host}, {port}, {model}, {served_model}, {slots} are filled in."""
    gpu: float | str = 0.0
    """Of each replica: 0 is the CPU, a number of GPUs, or a MIG profile such as 1g.18gb."""
    scale: ScaleSpec = ScaleSpec()
    engine_args: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Further arguments of the engine server's command line, as they are."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the engine's process."""

    @property
    def keeps_blocks(self) -> bool:
        """Whether KV blocks of it are stored. No word about those of other backends may reach a client."""
        return self.backend in _KV_BACKENDS and self.kv.strategy != "recompute"

    def for_gateway(self) -> TierSpec:
        """What the request path needs; its engine's window and the folder of its tokenizer stand in it where they are known."""
        known: dict[str, object] = {}
        if self.backend == "llamacpp" and self.max_model_len is None:
            known["max_model_len"] = DEFAULT_SLOT_TOKENS
        if self.backend == "vllm" and self.tokenizer is None and Path(self.model or "").is_dir():
            known["tokenizer"] = self.model
        if self.is_managed and self.scale.min == 0:
            known["wakes"] = True
        if self.is_managed and self.scale.standbys:
            known["in_rotation"] = max(1, self.scale.min)
        if not self.keeps_blocks:
            known["kv"] = KvSpec()
        return TierSpec(**{**{name: getattr(self, name) for name in TierSpec.model_fields}, **known})


class Model(Spec):
    """The name that clients ask for, and its ladder: tiers, best first."""

    features: FeaturesSpec | None = None
    tiers: Annotated[tuple[Tier, ...], Field(strict=False, min_length=1)]


class Config(Spec):
    """Everything that a system is told."""

    server: ServerSpec = ServerSpec()
    state_store: StateStoreSpec = StateStoreSpec()
    models: Annotated[dict[str, Model], Field(min_length=1)]
    health: HealthSpec = HealthSpec()
    engine_metrics: EngineMetricsSpec = EngineMetricsSpec()
    breaker: BreakerSpec = BreakerSpec()
    retry: RetrySpec = RetrySpec()
    routing: RoutingSpec = RoutingSpec()
    ladder: LadderSpec = LadderSpec()
    limits: LimitsSpec = LimitsSpec()
    max_body_bytes: Annotated[int, Field(ge=1024)] = GatewaySpec.model_fields["max_body_bytes"].default
    request_timeout_s: Seconds = GatewaySpec.model_fields["request_timeout_s"].default
    admin_key: str | None = Field(default=None, repr=False)
    keys: Annotated[tuple[KeySpec, ...], Field(strict=False)] = ()
    log: LogSpec = LogSpec()
    tracing: TracingSpec = TracingSpec()

    def allowed_host(self, host: str) -> str:
        """Where it may listen: as long as there are no keys, where no stranger can reach it."""
        return host if self.keys or is_local(host) else LOOPBACK

    @property
    def kv_room_bytes(self) -> int:
        """What KV blocks may take of an embedded store, a quarter for what Redis adds to them included."""
        tiers = [tier for model in self.models.values() for tier in model.tiers if tier.keeps_blocks]
        return sum(5 * tier.kv.budget_bytes // 4 for tier in tiers)

    def managed_tiers(self) -> list[tuple[str, Tier]]:
        """The tiers whose replicas Graceway starts, each with its model's name."""
        return [
            (name, tier) for name, model in self.models.items() for tier in model.tiers if tier.is_managed
        ]


class ConfigError(ValueError):
    """A file that can't be used. `str()` gives each problem a line of its own, in the order of the file."""

    def __init__(self, file: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(file, problems)
        self.file, self.problems = file, problems

    def __str__(self) -> str:
        return "\n".join(problem.at(self.file) for problem in self.problems)


def load_config(path: Path | str, environment: Mapping[str, str] | None = None) -> Config:
    """The file as a Config; `environment` (default: the process's) fills `${VAR}`. Raises ConfigError."""
    document = read_document(Path(path), os.environ if environment is None else environment)
    config, problems = _validate(document)
    if config is None:
        in_order = sorted(dict.fromkeys(problems), key=lambda problem: problem.line)
        raise ConfigError(str(path), tuple(in_order))
    return config


def to_gateway_spec(config: Config) -> GatewaySpec:
    """The part of the config that the request path needs."""
    models = {
        name: ModelSpec(features=model.features, tiers=tuple(tier.for_gateway() for tier in model.tiers))
        for name, model in config.models.items()
    }
    shared = {name: getattr(config, name) for name in GatewaySpec.model_fields if name != "models"}
    return GatewaySpec(models=models, **shared)


def _validate(document: Document) -> tuple[Config | None, list[Problem]]:
    if document.data is None and document.problems:
        return None, document.problems
    if not isinstance(document.data, dict):
        mend = "Write `models:` with one model and its `tiers:`"
        return None, [*document.problems, Problem(1, "the file is not a mapping of keys to values", mend)]
    problems = [*document.problems, *rule_problems(document)]
    try:
        config = Config.model_validate(_with_defaults(document.data))
    except ValidationError as error:
        return None, [*problems, *schema_problems(error, document, Config)]
    return (None if problems else config), problems


def _with_defaults(data: dict[str, Plain]) -> dict[str, Plain]:
    """The data with what a tier's backend implies: its name, what its answers are worth, a canned text."""
    models = data.get("models")
    if not isinstance(models, dict):
        return data
    return {**data, "models": {name: _model_with_defaults(model) for name, model in models.items()}}


def _model_with_defaults(model: Plain) -> Plain:
    if not isinstance(model, dict) or not isinstance(model.get("tiers"), list):
        return model
    tiers: list[Plain] = []
    taken: set[str] = set()
    for tier in model["tiers"]:  # type: ignore[union-attr]  # a list, by the line above
        full = _tier_with_defaults(tier, taken) if isinstance(tier, dict) else tier
        tiers.append(full)
    return {**model, "tiers": tiers}


def _tier_with_defaults(tier: dict[str, Plain], taken: set[str]) -> dict[str, Plain]:
    backend = tier.get("backend")
    if not isinstance(backend, str):
        return {"name": "unnamed", **tier}
    implied: dict[str, Plain] = {
        "name": _free_name(backend, taken),
        "quality": _DEFAULT_QUALITY.get(backend, 1.0),
    }
    if backend in _MANAGED:
        implied["slots"] = DEFAULT_SLOTS
    if "price" in tier:
        # A known prompt costs money, and a host elsewhere knows no fields but OpenAI's.
        implied["probe"], implied["resume"] = None, "none"
    if backend == "canned":
        implied["text"] = CANNED_TEXT
    scale = tier.get("scale")
    if isinstance(scale, dict) and "min" in scale:
        implied["scale"] = {"max": scale["min"] or 1, **scale}
    full = {**implied, **tier, **({"scale": implied["scale"]} if "scale" in implied else {})}
    taken.add(str(full["name"]))
    return full


def _free_name(backend: str, taken: set[str]) -> str:
    if backend not in taken:
        return backend
    return next(f"{backend}-{n}" for n in range(2, len(taken) + 3) if f"{backend}-{n}" not in taken)
