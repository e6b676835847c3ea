"""Which keys of a config only a restart applies. Every key is here, in one of two lists: what nobody has classified is held
to need a restart, so that no change is lost in silence.
"""

from collections.abc import Iterator
from typing import Literal

from deploy.config import Config
from gateway.specs import Spec

Runner = Literal["serve", "up"]

RESTART: frozenset[str] = frozenset(
    {
        "server.host", "server.port", "server.grpc_port", "server.tls", "state_store.url",
        "log.format", "log.level", "log.requests",
    }
)  # fmt: skip
RELOAD: frozenset[str] = frozenset(
    {
        # `graceway serve` has no use for it, `up` has Serve change it.
        "server.gateways",
        "models", "keys", "admin_key", "max_body_bytes", "request_timeout_s",
        *(f"health.{key}" for key in ("interval_s", "timeout_s", "down_after", "up_after", "max_ejected_share")),
        *(f"engine_metrics.{key}" for key in ("interval_s", "stale_after_s")),
        *(f"breaker.{key}" for key in (
            "window_s", "min_count", "failure_share", "slow_share", "probes", "backoff_s", "backoff_max_s",
        )),
        *(f"retry.{key}" for key in ("budget_share", "budget_floor_per_s", "max_attempts", "hedge")),
        *(f"routing.{key}" for key in ("filters", "scorers", "picker", "zone", "prefix_budget_bytes")),
        "ladder.proven_for_s",
        *(f"limits.{key}" for key in (
            "max_connections", "max_connections_per_address", "head_timeout_s", "body_timeout_s", "keep_alive_s",
            "write_timeout_s", "max_head_bytes", "max_headers", "max_url_bytes",
        )),
        *(f"tracing.{key}" for key in ("url", "ratio", "service", "headers")),
    }
)  # fmt: skip
_SERVE_CHANGES: frozenset[str] = frozenset({"server.grpc_port"})
"""Under `up`: new gateways take the place of those that run."""
EMBEDDED_KV = "kv.budget_bytes"


def needs_restart(running: Config, new: Config, runner: Runner = "serve") -> tuple[str, ...]:
    """The keys of `new` that stay without effect until a process that was started with `running` is started again."""
    before = dict(_values(running))
    changed = [key for key, value in _values(new) if value != before[key]]
    by_reload = RELOAD | (_SERVE_CHANGES if runner == "up" else frozenset())
    return (*(key for key in changed if key not in by_reload), *_store_too_small(running, new))


def keys_of(config: Config) -> list[str]:
    """All keys, those of sections as `section.key`."""
    return [key for key, _ in _values(config)]


def _values(config: Config) -> Iterator[tuple[str, object]]:
    for name, section in _heeded(config):
        if isinstance(section, Spec):
            yield from ((f"{name}.{key}", value) for key, value in section)
        else:
            yield name, section


def _heeded(config: Config) -> Config:
    """With the host on which it may listen: that changes with the first key, too."""
    host = config.allowed_host(config.server.host)
    return config.model_copy(update={"server": config.server.model_copy(update={"host": host})})


def _store_too_small(running: Config, new: Config) -> tuple[str, ...]:
    """An embedded store has the room for KV blocks that it was started with."""
    is_embedded = running.state_store.url == "embedded"
    return (EMBEDDED_KV,) if is_embedded and new.kv_room_bytes > running.kv_room_bytes else ()
