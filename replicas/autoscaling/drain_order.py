"""Which replica goes first when a tier shrinks: the one whose loss costs least."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from replicas.autoscaling.load import LOADS, LoadRecord
from replicas.autoscaling.rotation import in_rotation
from state_store.protocol import StateStore
from state_store.records import REPLICAS, ReplicaRecord


@dataclass(frozen=True, slots=True)
class Member:
    """One replica with what would be lost with it."""

    replica: str
    state: str
    """As in its record: `starting`, `ready`, `draining` or `down`."""
    bound_sessions: int = 0
    cached_prefixes: int = 0
    is_standby: bool = False
    """Started and not in rotation: serves nobody, but is the first one needed."""
    zone: str = ""


_ORDER = {"draining": 0, "down": 1, "starting": 2, "ready": 3}


def drain_order(members: Iterable[Member]) -> tuple[Member, ...]:
    """All members, the first to go first; those whose loss costs the same stay in the order in which they come.

    What is leaving anyway or serves nothing goes before what will soon serve, and that before what serves. Of the
    ready ones, those with fewest bound sessions, then cached prefixes. A warm standby stays longer: it costs nobody
    anything and saves a cold start. Longest stays whoever is the last ready one of its zone, or the next zone to fail might
    take all that is left.
    """
    going: list[Member] = []
    last_of_zone: list[Member] = []
    in_order = sorted(members, key=_cost)
    ready = Counter(member.zone for member in in_order if member.state == "ready")
    for member in in_order:
        ready[member.zone] -= member.state == "ready"
        is_last = member.state == "ready" and not ready[member.zone]
        (last_of_zone if is_last else going).append(member)
    return (*going, *last_of_zone)


def _cost(member: Member) -> tuple[int, bool, int, int]:
    rank = _ORDER.get(member.state, 1)
    return rank, member.is_standby, member.bound_sessions, member.cached_prefixes


def members_of(
    records: Sequence[ReplicaRecord], loads: Iterable[LoadRecord], serving: int | None = None
) -> tuple[Member, ...]:
    """The replicas of one tier as they have registered, with the sessions that its gateways know to be bound to each.

    `serving` of the ready ones are in rotation, or all. A session that two gateways have served counts twice, on
    whichever replica it is: for an order that is good enough.
    """
    bound: dict[str, int] = {}
    for load in loads:
        for replica, count in load.bound_sessions.items():
            bound[replica] = bound.get(replica, 0) + count
    ready = [r for r in records if r.state == "ready" and not r.is_leaving]
    standbys = {r.replica for r in ready} - {
        r.replica for r in in_rotation(ready, len(ready) if serving is None else serving)
    }
    return tuple(
        Member(
            r.replica,
            "draining" if r.is_leaving else r.state,
            bound.get(r.replica, 0),
            r.held_blocks,
            r.replica in standbys,
            r.zone,
        )
        for r in records
    )


async def members_in(
    store: StateStore, model: str, tier: str, serving: int | None = None
) -> tuple[Member, ...]:
    """The same from the store.

    Raises:
        StateStoreUnavailable
    """
    records = map(ReplicaRecord.from_bytes, (await store.scan(REPLICAS)).values())
    loads = map(LoadRecord.from_bytes, (await store.scan(LOADS)).values())
    wanted = (model, tier)
    return members_of(
        [r for r in records if r is not None and (r.model, r.tier) == wanted],
        [load for load in loads if load is not None and (load.model, load.tier) == wanted],
        serving,
    )
