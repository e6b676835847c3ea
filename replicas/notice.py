"""Notices that a replica, or whatever runs on a host, will be taken away: a spot machine's two minutes, a node's repair.

Who is told leaves the notice in the store, where the replica's supervisor looks at every heartbeat.
"""

from dataclasses import dataclass

from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import Record

NOTICES = "notices"
KEPT_S = 60.0
"""Beyond the grace: what is started on a host that goes should hear of it, too."""


@dataclass(frozen=True, slots=True)
class Notice(Record):
    """That the subject is gone `grace_s` after `given_at` (Unix time)."""

    given_at: float
    grace_s: float

    def left_s(self, now: float) -> float:
        """Seconds that remain; none is less than none."""
        return max(0.0, self.given_at + self.grace_s - now)


def of_replica(name: str) -> str:
    return f"replica:{name}"


def of_host(host: str) -> str:
    return f"host:{host}"


async def give(store: StateStore, subject: str, notice: Notice) -> None:
    """Raises StateStoreUnavailable."""
    await store.put(NOTICES, subject, notice.to_bytes(), ttl_s=notice.grace_s + KEPT_S)


async def heard(store: StateStore, *subjects: str) -> Notice | None:
    """The first that is there of these subjects; None while the store is away."""
    for subject in subjects:
        try:
            raw = await store.get(NOTICES, subject)
        except StateStoreUnavailable:
            return None
        if raw is not None and (notice := Notice.from_bytes(raw)) is not None:
            return notice
    return None
