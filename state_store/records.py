"""The frozen records that processes leave for each other in the store, and their form as bytes."""

from dataclasses import asdict, dataclass
from typing import Any, Self

import orjson


@dataclass(frozen=True, slots=True)
class Record:
    """A frozen record with a JSON form. Fields of a newer writer are ignored; a broken value is None."""

    def to_bytes(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self | None:
        try:
            fields: Any = orjson.loads(raw)
            return cls(**{k: v for k, v in fields.items() if k in cls.__dataclass_fields__})
        except (orjson.JSONDecodeError, AttributeError, TypeError):
            return None


REPLICAS = "replicas"


@dataclass(frozen=True, slots=True)
class ReplicaRecord(Record):
    """A managed replica as its supervisor registers it, under a lease that heartbeats renew.

    State is one of `starting` (weights load), `ready` (live, ready and right), `draining` (serves what it
    has) and `down` (its engine died or answers wrongly; the supervisor restarts it).
    """

    replica: str
    model: str
    tier: str
    url: str
    served_model: str
    state: str
    reason: str
    zone: str
    slots: int
    heartbeat_s: float
    """Seconds between two heartbeats."""
    as_of: float
    """Unix time of this heartbeat on the supervisor's clock."""
    engine_pid: int = 0
    restarts: int = 0
    held_blocks: int = 0
    """Blocks of prompts and answers in its engine's prefix cache: of replicas that may go, the one with fewest goes."""
    is_leaving: bool = False
    """Whether it goes as soon as another can take over. Until then it serves as ever."""
