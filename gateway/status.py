"""What a gateway knows about itself, as data: for `/status`, the command line and the gauges of `/metrics`."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from operator import attrgetter
from time import time
from typing import Any

from gateway.chronicle import Look
from gateway.config_standing import ConfigStanding
from gateway.exercised import Exercised
from gateway.fleet import Fleet
from gateway.policy.outlier import lagging
from gateway.policy.quantile import DurationQuantiles
from gateway.purse import money_text
from gateway.reason_words import in_words
from gateway.replica import Replica
from gateway.shares import TierShares, of_kind
from gateway.standing import RECENT_S, Recent, Rung, Standing, standing
from gateway.telemetry import Sample, Samples
from gateway.tier import Tier

Json = dict[str, Any]
PRIORITIES = ("critical", "standard", "sheddable")


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a request that every replica has: side by side they show which one lags."""

    metric: str
    help: str
    floor_s: float
    """A difference below it is noise."""
    of: Callable[[Replica], DurationQuantiles]


SPANS = {
    "dispatch": Span(
        "graceway_dispatch_seconds",
        "From the decision to the request in the replica's socket",
        0.005,
        attrgetter("dispatches"),
    ),
    "prefill": Span(
        "graceway_prefill_seconds",
        "From a request sent to a replica to its first token",
        0.02,
        attrgetter("ttfts"),
    ),
    "gap": Span("graceway_token_gap_seconds", "Between two tokens of a replica", 0.003, attrgetter("gaps")),
}
LAG_SAMPLES = 8.0
"""Fewer say nothing about who lags."""


def model_status(fleet: Fleet, shares: TierShares, exercised: Exercised, now: float) -> Json:
    """One model: its ladder, which tier serves, and what became of its requests in the last minute and hour."""
    tiers = [_tier(tier, shares, exercised, now) for tier in fleet.tiers.values()]
    minute = shares.last(60, now)
    return {
        "ready": any(t["serving"] for t in tiers),
        "tiers": tiers,
        "prefixes": {"blocks": len(fleet.prefixes), "size_bytes": fleet.prefixes.size_bytes},
        "answers_60s": sum(of_kind(minute, "tier").values()),
        "degraded_60s": of_kind(minute, "reason"),
        "sheds_60s": of_kind(minute, "shed"),
        "given_up_60s": of_kind(minute, "given_up"),
        "features_60s": of_kind(minute, "feature"),
        "streams_60s": of_kind(minute, "stream"),
        "shares_1h": _hour(fleet, shares, now),
    }


def ladder_of(fleet: Fleet) -> list[Json]:
    """What each tier is and gives up, best first."""
    return [
        {
            "name": t.name,
            "backend": t.spec.backend,
            "quality": t.spec.quality,
            "replicas": len(t.replicas),
            "slots": t.spec.slots,
            "gives_up": t.spec.gives_up.model_dump(exclude_defaults=True),
            "max_age_s": t.spec.max_age_s if t.spec.backend == "cache" else None,
        }
        for t in fleet.tiers.values()
    ]


def _hour(fleet: Fleet, shares: TierShares, now: float) -> Json:
    """The last hour by the minute, oldest first: answers of each tier that is or was there, and refusals by reason."""
    minutes = shares.hour(now)
    seen = {name for m in minutes for name in of_kind(m, "tier")}
    tiers = [*fleet.tiers, *sorted(seen - fleet.tiers.keys())]
    reasons = sorted({name for m in minutes for name in of_kind(m, "shed")})
    return {
        "bucket_s": 60,
        "tiers": {t: [m["tier", t] for m in minutes] for t in tiers},
        "sheds": {r: [m["shed", r] for m in minutes] for r in reasons},
    }


def look(fleet: Fleet, shares: TierShares, now: float) -> Look:
    """What the chronicle compares from one moment to the next."""
    totals = shares.totals
    return Look(
        standing=model_standing(fleet, shares, now),
        serving={t.name: _is_serving(t, now) for t in fleet.tiers.values()},
        lower_answers=sum(of_kind(totals, "reason").values()),
        sheds=sum(of_kind(totals, "shed").values()),
        resumed=totals["stream", "resumed"],
        given_up=totals["stream", "given_up"],
    )


def quality_gap(fleet: Fleet, shares: TierShares, now: float) -> float:
    """How much less the last minute's answers are worth, on average, than the best tier's; 0 without any."""
    minute = shares.last(60, now)
    answers = {t: n for t in fleet.tiers if (n := minute["tier", t])}
    if not answers:
        return 0.0
    worth = sum(fleet.tiers[name].spec.quality * count for name, count in answers.items())
    best = max(tier.spec.quality for tier in fleet.tiers.values())
    return best - worth / sum(answers.values())


def model_standing(fleet: Fleet, shares: TierShares, now: float) -> Standing:
    """How the model stands, in words."""
    recent = shares.last(RECENT_S, now)
    return standing(
        fleet.model,
        [_rung(tier, now) for tier in fleet.tiers.values()],
        Recent(of_kind(recent, "tier"), of_kind(recent, "reason"), of_kind(recent, "shed")),
    )


def _rung(tier: Tier, now: float) -> Rung:
    out = tuple(what for r in tier.replicas.values() if (what := _out(r, now)))
    if tier.purse is not None and tier.purse.is_spent:
        out = ("out of money",) * len(tier.replicas)
    is_serving, count = _is_serving(tier, now), len(tier.replicas)
    lacks = "has too little money left for what is asked of it" if tier.purse and tier.purse.is_short else ""
    return Rung(tier.name, tier.spec.quality, is_serving, count, out, tier.share, tier.held_because, lacks)


def _purse(tier: Tier) -> Json | None:
    """What a paid tier has cost in this period, and may cost yet."""
    purse = tier.purse
    if purse is None:
        return None
    return {
        "amount": purse.budget.amount,
        "per": purse.budget.per,
        "spent": round(purse.account.spent, 6),
        "left": round(purse.account.left, 6),
        "is_spent": purse.is_spent,
        "is_short": purse.is_short,
        "resets_in_s": round(purse.resets_in_s),
    }


def _is_serving(tier: Tier, now: float) -> bool:
    return not tier.spec.has_replicas or len(tier.routable(now)) > 0


def _out(replica: Replica, now: float) -> str:
    """Why a replica may get nothing now; empty when it may."""
    if replica.is_routable(now):
        return ""
    if not replica.health.is_ready:
        return _state(replica)
    return "held back by a breaker" if not replica.breaker.admits(now) else "pausing as it asked to"


def _tier(tier: Tier, shares: TierShares, exercised: Exercised, now: float) -> Json:
    serving, proof = _is_serving(tier, now), exercised.of(tier.name, time())
    return {
        "name": tier.name,
        "backend": tier.spec.backend,
        "quality": tier.spec.quality,
        "quality_as_of": tier.spec.quality_as_of,
        "serving": serving,
        "reason": "" if serving else _why_not(tier, now),
        "share_60s": round(shares.of(tier.name, now), 4),
        "allotted": round(tier.share, 4),
        "held_because": tier.held_because,
        "pressure": round(tier.pressure, 4),
        "waiting": len(tier.room),
        "waiting_by_priority": dict(zip(PRIORITIES, tier.room.counts(), strict=True)),
        "proven": proof.is_proven,
        "proof": proof.text,
        "exercised_at": proof.at,
        "slo_ttft_s": tier.spec.slo.ttft_s,
        "slo_itl_s": tier.spec.slo.itl_s,
        "ttft_p50_s": tier.ttfts.quantile(0.5),
        "ttft_p99_s": tier.ttfts.quantile(0.99),
        "budget": _purse(tier),
        "replicas": _replicas(tier, now),
    }


def _why_not(tier: Tier, now: float) -> str:
    if tier.purse is not None and tier.purse.is_spent:
        return money_text(tier.purse)
    if not tier.replicas:
        return "no replica is registered"
    return "; ".join(sorted({f"{r.replica} {_out(r, now)}" for r in tier.replicas.values()}))


def _state(replica: Replica) -> str:
    reason = f" ({in_words(replica.health.reason)})" if replica.health.reason else ""
    return f"{replica.health.state}{reason}"


def _replicas(tier: Tier, now: float) -> list[Json]:
    """The tier's replicas, each with the parts of a request in which it is plainly slower than the others."""
    lags = {name: _lagging(tier, name) for name in SPANS}
    return [
        _replica(r, now)
        | {
            "stands_by": tier.stands_by(r, now),
            "lags": [name for name in SPANS if r.replica in lags[name]],
        }
        for r in tier.replicas.values()
    ]


def _lagging(tier: Tier, span: str) -> frozenset[str]:
    # One that is out has no speed to compare.
    found = {r.replica: SPANS[span].of(r) for r in tier.replicas.values() if r.health.is_ready}
    medians = {
        name: samples.quantile(0.5) or 0.0 for name, samples in found.items() if samples.total >= LAG_SAMPLES
    }
    return lagging(medians, SPANS[span].floor_s)


def _replica(replica: Replica, now: float) -> Json:
    return {
        "replica": replica.replica,
        "url": replica.place.url,
        "zone": replica.zone,
        "mig_slice": replica.place.mig_slice,
        "state": replica.health.state,
        "reason": replica.health.reason,
        "since_s": round(now - replica.health.since, 1) if replica.health.since else None,
        "in_flight": replica.in_flight,
        "slots": replica.place.slots or replica.slots,
        "breaker": replica.breaker.seen_as(now),
        "held_blocks": replica.held_blocks,
        "ttft_s": round(replica.ttft_s, 4),
        "engine": _engine(replica, now),
        "spans": {name: _quantiles(span.of(replica)) for name, span in SPANS.items()},
    }


def _engine(replica: Replica, now: float) -> Json | None:
    """What the engine's own metrics say, and how many seconds ago; None where it has none that are read."""
    if replica.kv_use is None:
        return None
    return {
        "kv_use": round(replica.kv_use, 3),
        "from_elsewhere": replica.elsewhere.places,
        "kv_restoring": None if replica.restoring is None else asdict(replica.restoring),
        "age_s": round(now - replica.kv_as_of, 1),
    }


def config_gauges(config: ConfigStanding) -> Iterator[Sample]:
    """Whether what is in force is what the file says."""
    refused = "1 while the config in the file is refused, and an older one in force"
    yield "graceway_config_refused", refused, {}, float(config.is_older_than_file)
    waiting = "Changed keys of the config that only a restart applies"
    yield "graceway_config_needs_restart", waiting, {}, float(len(config.needs_restart))
    since = "Since when the config in force is"
    yield "graceway_config_in_force_timestamp_seconds", since, {}, config.in_force_since


def gauges(fleet: Fleet, exercised: Exercised, now: float) -> Iterator[Sample]:
    """The samples that are read at a scrape."""
    for tier in fleet.tiers.values():
        labels = {"model": fleet.model, "tier": tier.name}
        routable = len(tier.routable(now)) if tier.spec.has_replicas else 1
        yield "graceway_tier_routable", "Replicas that may get requests", labels, float(routable)
        yield "graceway_tier_quality", "What the tier's answers are worth, 0 to 1", labels, tier.spec.quality
        for rank, count in zip(PRIORITIES, tier.room.counts(), strict=True):
            yield "graceway_queue_length", "Requests waiting", {**labels, "priority": rank}, float(count)
        yield "graceway_tier_share", "What the ladder lets the tier have of its traffic", labels, tier.share
        yield (
            "graceway_tier_pressure",
            "0 while every signal is within its limit, to 1",
            labels,
            tier.pressure,
        )
        proof = exercised.of(tier.name, time())
        yield (
            "graceway_tier_proven",
            "1 while a drill or an answer shows that it serves",
            labels,
            proof.is_proven,
        )
        if proof.at is not None:
            yield "graceway_tier_exercised_timestamp_seconds", "When it was last exercised", labels, proof.at
        for signal, value in tier.signals.named().items():
            if value is not None:
                yield "graceway_tier_signal", "Against its limit, 1", {**labels, "signal": signal}, value
        if tier.purse is not None:
            account = tier.purse.account
            spent = "Money that this gateway spent in the period"
            left = "Money of the period that is left to all gateways"
            yield "graceway_budget_spent", spent, labels, account.spent
            yield "graceway_budget_left", left, labels, 0.0 if tier.purse.is_spent else account.left
            short = "1 while what is left did not suffice for the latest request"
            yield "graceway_budget_short", short, labels, tier.purse.is_short
        slo = tier.spec.slo
        yield "graceway_slo_ttft_seconds", "What the tier promises for the first token", labels, slo.ttft_s
        yield "graceway_slo_itl_seconds", "What it promises between two tokens", labels, slo.itl_s
        for replica in tier.replicas.values():
            yield from _replica_gauges(replica, labels, now)


def _replica_gauges(replica: Replica, labels: dict[str, str], now: float) -> Iterator[Sample]:
    labels = {**labels, "replica": replica.replica}
    is_open = {"closed": 0.0, "half-open": 0.5, "open": 1.0}[replica.breaker.seen_as(now)]
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
    yield (
        "graceway_replica_slots",
        "Sequences it decodes at once",
        labels,
        float(replica.place.slots or replica.slots or 0),
    )


def _quantiles(samples: DurationQuantiles) -> Json:
    p50_s, p99_s = samples.quantile(0.5), samples.quantile(0.99)
    return {"p50_s": p50_s and round(p50_s, 5), "p99_s": p99_s and round(p99_s, 5)}


def span_samples(fleet: Fleet) -> Iterator[Samples]:
    """The histograms that are read at a scrape."""
    for tier in fleet.tiers.values():
        for replica in tier.replicas.values():
            labels = {"model": fleet.model, "tier": tier.name, "replica": replica.replica}
            for span in SPANS.values():
                yield span.metric, span.help, labels, span.of(replica)
