"""What a gateway knows about itself, as data: for `/status`, the command line and the gauges of `/metrics`."""

from collections.abc import Iterator
from typing import Any

from gateway.fleet import Fleet, Replica, Tier
from gateway.shares import TierShares
from gateway.telemetry import Sample

Json = dict[str, Any]


def model_status(fleet: Fleet, shares: TierShares, now: float) -> Json:
    """One model: its ladder, and which tier serves."""
    tiers = [_tier(tier, shares, now) for tier in fleet.tiers.values()]
    return {"ready": any(t["serving"] for t in tiers), "tiers": tiers}


def _tier(tier: Tier, shares: TierShares, now: float) -> Json:
    serving = not tier.spec.has_replicas or len(tier.routable(now)) > 0
    return {
        "name": tier.name,
        "backend": tier.spec.backend,
        "quality": tier.spec.quality,
        "serving": serving,
        "reason": "" if serving else _why_not(tier),
        "share_60s": round(shares.of(tier.name, now), 4),
        "waiting": len(tier.room),
        "replicas": [_replica(r, now) for r in tier.replicas.values()],
    }


def _why_not(tier: Tier) -> str:
    if not tier.replicas:
        return "no replica is registered"
    return "; ".join(sorted({f"{r.replica} {_state(r)}" for r in tier.replicas.values()}))


def _state(replica: Replica) -> str:
    reason = f" ({replica.health.reason})" if replica.health.reason else ""
    return f"{replica.health.state}{reason}"


def _replica(replica: Replica, now: float) -> Json:
    return {
        "replica": replica.replica,
        "url": replica.place.url,
        "zone": replica.zone,
        "state": replica.health.state,
        "reason": replica.health.reason,
        "since_s": round(now - replica.health.since, 1) if replica.health.since else None,
        "in_flight": replica.in_flight,
        "slots": replica.place.slots,
        "breaker": replica.breaker.state,
        "ttft_s": round(replica.ttft_s, 4),
    }


def gauges(fleet: Fleet, now: float) -> Iterator[Sample]:
    """The samples that are read at a scrape."""
    for tier in fleet.tiers.values():
        labels = {"model": fleet.model, "tier": tier.name}
        routable = len(tier.routable(now)) if tier.spec.has_replicas else 1
        yield "graceway_tier_routable", "Replicas that may get requests", labels, float(routable)
        yield "graceway_tier_quality", "What the tier's answers are worth, 0 to 1", labels, tier.spec.quality
        for rank, count in zip(("critical", "standard", "sheddable"), tier.room.counts(), strict=True):
            yield "graceway_queue_length", "Requests waiting", {**labels, "priority": rank}, float(count)
        for replica in tier.replicas.values():
            yield from _replica_gauges(replica, labels)


def _replica_gauges(replica: Replica, labels: dict[str, str]) -> Iterator[Sample]:
    labels = {**labels, "replica": replica.replica}
    is_open = {"closed": 0.0, "half-open": 0.5, "open": 1.0}[replica.breaker.state]
    yield (
        "graceway_replica_ready",
        "1 while the replica is in rotation",
        labels,
        float(replica.health.is_ready),
    )
    yield (
        "graceway_replica_in_flight",
        "Requests on the replica from this gateway",
        labels,
        float(replica.in_flight),
    )
    yield "graceway_breaker_open", "0 closed, 0.5 half open, 1 open", labels, is_open
    yield "graceway_replica_slots", "Sequences it decodes at once", labels, float(replica.place.slots or 0)
