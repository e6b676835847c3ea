"""The frozen records that processes leave for each other in the store, and their form as bytes."""

from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any, Self
from urllib.parse import urlsplit

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
    ready_since: float = 0.0
    """Unix time since when its engine is ready without a break; 0 while it is not."""
    mig_slice: str = ""
    """The part of a GPU that it has to itself, in words; empty for a whole one, or none."""

    @property
    def is_sound(self) -> bool:
        """Whether it is what a supervisor writes, rather than something that would have requests sent elsewhere."""
        texts = (
            self.replica,
            self.model,
            self.tier,
            self.served_model,
            self.state,
            self.zone,
            self.mig_slice,
        )
        return (
            all(isinstance(text, str) for text in texts)
            and isinstance(self.slots, int)
            and isinstance(self.url, str)
            and (not self.url or _is_server(self.url))
        )


def _is_server(url: str) -> bool:
    """Whether it is the address of one server and nothing else: no login, no path, and no address that is none's own."""
    try:
        parts = urlsplit(url)
        is_plain = parts.scheme == "http" and bool(parts.hostname) and bool(parts.port)
        is_bare = not (
            parts.username or parts.password or parts.query or parts.fragment or parts.path.strip("/")
        )
    except ValueError:
        return False
    return is_plain and is_bare and url.isprintable() and not _is_nobodys(parts.hostname or "")


def _is_nobodys(host: str) -> bool:
    """Link-local addresses are where clouds keep their machines' credentials; no engine listens there."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_link_local or address.is_multicast or address.is_unspecified
