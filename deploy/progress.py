"""What an operator is told while a system comes up, and afterwards when something changes. Pure: facts in, lines out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.config import Config
from state_store.records import ReplicaRecord

REMINDER_S = 10.0
"""How often a state that lasts is told again, so that waiting looks like waiting."""


@dataclass
class _Seen:
    """A replica's last told state, since when, and when it was told."""

    state: str
    since_s: float
    told_s: float


@dataclass
class Progress:
    """Remembers what was told. Times are seconds since the start."""

    config: Config
    is_ready: bool = False
    _replicas: dict[str, _Seen] = field(default_factory=dict)
    _early: set[str] = field(default_factory=set)

    def of_replicas(self, now_s: float, records: Mapping[str, ReplicaRecord]) -> Iterator[str]:
        """Lines for every replica whose state changed, vanished, or has lasted while others wait for it."""
        for key, record in sorted(records.items()):
            yield from self._of_replica(now_s, key, record)
        for key in sorted(self._replicas.keys() - records.keys()):
            del self._replicas[key]
            yield f"{key}: gone"

    def _of_replica(self, now_s: float, key: str, record: ReplicaRecord) -> Iterator[str]:
        seen = self._replicas.get(key)
        name = f"{record.model}/{record.tier} {record.replica}"
        if seen is None or seen.state != record.state:
            after = f" after {now_s - seen.since_s:.0f} s" if seen else ""
            self._replicas[key] = _Seen(record.state, now_s, now_s)
            yield f"{name}: {record.state}{after}{_because(record.reason)}"
        elif record.state != "ready" and now_s - seen.told_s >= REMINDER_S:
            seen.told_s = now_s
            yield f"{name}: still {record.state} ({now_s - seen.since_s:.0f} s){_because(record.reason)}"

    def of_status(self, status: Mapping[str, Any]) -> Iterator[str]:
        """Lines for models that already answer from a lower tier, and notes once all answer from their best."""
        best = 0
        for name, model in status.get("models", {}).items():
            serving = [tier["name"] for tier in model["tiers"] if tier["serving"] and _is_engine(tier)]
            if model["tiers"][0]["serving"]:
                best += 1
            elif serving and name not in self._early:
                self._early.add(name)
                yield f"{name} answers already, degraded, from tier {serving[0]}; {model['tiers'][0]['name']} follows"
        self.is_ready = self.is_ready or best == len(self.config.models)


def ready_lines(config: Config, url: str) -> list[str]:
    """The address and one command to try, for the first model."""
    model = next(iter(config.models))
    messages = '[{"role": "user", "content": "What is the capital of France?"}]'
    body = f'{{"model": "{model}", "temperature": 0, "max_tokens": 40, "messages": {messages}}}'
    return [
        f"ready {url}",
        "try:",
        f"  curl -s {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
    ]


def _is_engine(tier: Mapping[str, Any]) -> bool:
    return tier["backend"] not in ("cache", "canned")


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""
