"""How a tier's load travels: gateways leave it in the state store, replicas hand it to Serve as plain numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from replicas.autoscaling.policy import Load
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import Record

LOADS = "loads"


@dataclass(frozen=True, slots=True)
class LoadRecord(Record):
    """What one gateway has of one tier; the key in the group is `gateway/model/tier`."""

    gateway: str
    model: str
    tier: str
    in_flight: int
    queued: int
    arrivals_per_s: float
    service_s: float
    """0 while no request has ended."""
    predicted_wait_s: float
    kv_use: float
    as_of: float
    bound_sessions: Mapping[str, int] = field(default_factory=dict)
    """By replica: the sessions that this gateway knows to have their state there."""


def combined(records: Sequence[LoadRecord]) -> Load | None:
    """The tier's load over all gateways; None without any. As old as its oldest part."""
    if not records:
        return None
    arrivals_per_s = sum(r.arrivals_per_s for r in records)
    known = [r for r in records if r.service_s > 0]
    weight = sum(r.arrivals_per_s for r in known)
    service_s = sum(r.service_s * r.arrivals_per_s for r in known) / weight if weight else None
    return Load(
        as_of=min(r.as_of for r in records),
        in_flight=sum(r.in_flight for r in records),
        queued=sum(r.queued for r in records),
        arrivals_per_s=arrivals_per_s,
        service_s=service_s if known else None,
        predicted_wait_s=max(r.predicted_wait_s for r in records),
        kv_use=max(r.kv_use for r in records),
    )


async def load_in(store: StateStore, model: str, tier: str) -> Load | None:
    """The tier's load as the gateways have left it in the store; None while it is away, or holds none."""
    try:
        raws = await store.scan(LOADS)
    except StateStoreUnavailable:
        return None
    records = [r for r in map(LoadRecord.from_bytes, raws.values()) if r is not None]
    return combined([r for r in records if (r.model, r.tier) == (model, tier)])


def to_stats(load: Load) -> dict[str, float]:
    """What `record_autoscaling_stats` returns: Serve takes numbers only, so what is unknown is left out."""
    return {name: float(value) for name, value in asdict(load).items() if value is not None}


def from_stats(stats: Mapping[str, float]) -> Load | None:
    """The load again; None when these are not the numbers of one."""
    try:
        return Load(
            as_of=stats["as_of"],
            in_flight=int(stats["in_flight"]),
            queued=int(stats["queued"]),
            arrivals_per_s=stats.get("arrivals_per_s"),
            service_s=stats.get("service_s"),
            predicted_wait_s=stats["predicted_wait_s"],
            kv_use=stats["kv_use"],
        )
    except (KeyError, ValueError):
        return None
