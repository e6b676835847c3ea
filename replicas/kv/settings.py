"""What an engine is told about its KV blocks, and how it travels to it: JSON on the command line, the URL beside it."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from state_store.kv.block_format import Codec
from state_store.kv.budget import Budget
from state_store.redis_url import parse_redis_url

Strategy = Literal["recompute", "checkpoint", "replicate", "sync"]
URL_VARIABLE = "GRACEWAY_KV_URL"
"""Where the blocks are. Not on the command line, where every user of the machine could read its password."""
CONNECTOR, MODULE = "GracewayKvConnector", "replicas.kv.connector"

DEFAULT_BUDGET_BYTES = 512 * 1024 * 1024
DEFAULT_TTL_S, MOST_TTL_S = 3600.0, 31_536_000.0


@dataclass(frozen=True, slots=True)
class KvSettings:
    """How one engine keeps its blocks.

    `recompute` keeps none. `checkpoint` stores a turn's blocks at its end, `replicate` each block when it is full,
    both behind the answer; `sync` as `replicate`, and says when a turn's blocks are stored.
    """

    strategy: Strategy = "replicate"
    budget_bytes: Annotated[int, Field(strict=True, ge=1)] = DEFAULT_BUDGET_BYTES
    """Of all blocks in Redis of the same pool, of all its replicas together."""
    ttl_s: Annotated[float, Field(strict=True, gt=0, le=MOST_TTL_S)] = DEFAULT_TTL_S
    compression: Codec = "none"
    connections: Annotated[int, Field(strict=True, ge=1)] = 2
    """That load at once."""
    host_memory_bytes: Annotated[int, Field(strict=True, ge=0)] = 0
    """Of vLLM's own tier in the memory beside the GPU: what is there is not asked of Redis."""
    pool: str = ""
    """Whose budget and time it is: of all replicas that name the same, such as those of a tier."""

    @property
    def budget(self) -> Budget:
        return Budget(self.budget_bytes, self.ttl_s, self.pool)


NO_KV = KvSettings("recompute")


def arguments(settings: KvSettings) -> tuple[str, ...]:
    """What the engine's command line needs for it."""
    tiers = []
    if settings.host_memory_bytes:
        tiers.append(connector("OffloadingConnector", {"cpu_bytes_to_use": settings.host_memory_bytes}))
    if settings.strategy != "recompute":
        tiers.append({**connector(CONNECTOR, asdict(settings)), "kv_connector_module_path": MODULE})
    return transfer(tiers) if tiers else ()


def transfer(tiers: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """The arguments for these connectors: blocks are loaded from the first one that has some, and saved to all."""
    one = tiers[0] if len(tiers) == 1 else connector("MultiConnector", {"connectors": tiers})
    return ("--kv-transfer-config", json.dumps(one))


def connector(name: str, extra: Mapping[str, object]) -> dict[str, object]:
    """One connector as vLLM is told of it. A block that it can't load is computed."""
    told = {"kv_connector": name, "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    return {**told, "kv_connector_extra_config": extra}


def received(extra_config: Mapping[str, Any]) -> KvSettings:
    """The settings as the connector finds them; those that are `unknown` are ignored. Raises ValueError with the key."""
    known = {name: value for name, value in extra_config.items() if name in KvSettings.__dataclass_fields__}
    try:
        return TypeAdapter(KvSettings).validate_python(known)
    except ValidationError as error:
        why = "; ".join(
            f"{fault['loc'][0]} is {fault['input']!r}: {fault['msg']}" for fault in error.errors()
        )
        raise ValueError(f"kv_connector_extra_config: {why}") from None


def unknown(extra_config: Mapping[str, Any]) -> list[str]:
    """Keys that say nothing here: misspelt, or of a newer sender."""
    return sorted(extra_config.keys() - KvSettings.__dataclass_fields__.keys())


def why_none(settings: KvSettings, url: str) -> str:
    """Why no blocks are to be kept; empty when some are."""
    if settings.strategy == "recompute":
        return "the strategy is recompute"
    return "" if url else f"{URL_VARIABLE} does not say where"


def why_unknown(hash_algorithm: str, environment: Mapping[str, str] = os.environ) -> str:
    """Why no other process would find this one's blocks by their names; empty when others do."""
    if hash_algorithm.startswith("xxhash") and "PYTHONHASHSEED" not in environment:
        return f"{hash_algorithm} names them anew in each process: use sha256, or set PYTHONHASHSEED"
    return ""


def url_of(environment: Mapping[str, str] = os.environ) -> str:
    """Where the blocks are; empty when nobody said. Raises ValueError for what is no address of a Redis."""
    url = environment.get(URL_VARIABLE, "")
    try:
        if url:
            parse_redis_url(url)
    except ValueError as error:
        raise ValueError(f"{URL_VARIABLE}: {error}") from None
    return url
