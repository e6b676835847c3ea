"""Which replicas of a tier take requests while others stand by: started, probed, and the first that are needed."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from state_store.records import Record

ROTATIONS = "rotations"
KEPT_S = 30.0


@dataclass(frozen=True, slots=True)
class RotationRecord(Record):
    """How many of a tier's replicas the scaling policy wants to take requests; the key in the group is `model/tier`."""

    model: str
    tier: str
    replicas: int


class Ready(Protocol):
    """A replica that could take requests."""

    @property
    def replica(self) -> str: ...
    @property
    def ready_since(self) -> float:
        """Unix time."""
        ...


AnyReady = TypeVar("AnyReady", bound=Ready)


def in_rotation(ready: Iterable[AnyReady], count: int) -> list[AnyReady]:
    """The `count` that have been ready for longest.

    So one that was lost and is back stands by, rather than take the place of the one that stepped in; and every gateway
    comes to the same.
    """
    return sorted(ready, key=lambda r: (r.ready_since, r.replica))[:count]
