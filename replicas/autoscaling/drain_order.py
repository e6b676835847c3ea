"""Which replica goes first when a tier shrinks: the one whose loss costs least."""

from collections.abc import Iterable
from dataclasses import dataclass

from state_store.records import ReplicaRecord


@dataclass(frozen=True, slots=True)
class Member:
    """One replica with what would be lost with it."""

    replica: str
    state: str
    """As in its record: `starting`, `ready`, `draining` or `down`."""
    bound_sessions: int = 0
    cached_prefixes: int = 0
    in_flight: int = 0
    started_at: float = 0.0
    is_standby: bool = False
    """Started and not in rotation: serves nobody, but is the first one needed."""


def member_of(record: ReplicaRecord, *, bound_sessions: int = 0, in_flight: int = 0) -> Member:
    """What a replica's record says would be lost with it; the rest only gateways know."""
    return Member(record.replica, record.state, bound_sessions, record.held_blocks, in_flight)


_ORDER = {"draining": 0, "down": 1, "starting": 2, "ready": 3}


def drain_order(members: Iterable[Member]) -> tuple[Member, ...]:
    """All members, the first to go first.

    What is leaving anyway or serves nothing goes before what will soon serve, and that before what serves; the
    youngest start first, since it has longest to go. Of the ready ones, those with fewest bound sessions, then cached
    prefixes, then requests. A warm standby stays longest: it costs nobody anything and saves a cold start.
    """
    return tuple(sorted(members, key=_cost))


def _cost(member: Member) -> tuple[int, bool, int, int, int, float, str]:
    rank = _ORDER.get(member.state, 1)
    youngest_first = -member.started_at if member.state == "starting" else member.started_at
    return (
        rank,
        member.is_standby,
        member.bound_sessions,
        member.cached_prefixes,
        member.in_flight,
        youngest_first,
        member.replica,
    )
