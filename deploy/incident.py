"""What happened to one model, read from the gateways' chronicle: incidents, what each rung gave up, what to change. Pure.

An incident is a stretch of time in which lower tiers answered, requests were refused, or a tier was held back; a calm of
less than a minute does not end it. Times are Unix seconds.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from gateway.standing import why

Json = Mapping[str, Any]
ROW_S = 10.0
CALM_S = 60.0
BEFORE_S, AFTER_S = 60.0, 30.0
"""Events that close to an incident are told with it."""
SLOW_RETURN_S = 15.0


@dataclass(frozen=True, slots=True)
class TierFacts:
    """One rung as it is configured now."""

    name: str
    backend: str
    quality: float
    replicas: int = 0
    slots: int | None = None
    gives_up: Mapping[str, Any] = field(default_factory=dict)
    max_age_s: float | None = None

    @property
    def is_always_there(self) -> bool:
        return self.backend == "canned"


@dataclass(frozen=True, slots=True)
class Moment:
    """Ten seconds of one model, over all gateways."""

    at: float
    tiers: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    sheds: Counter[str] = field(default_factory=Counter)
    streams: Counter[str] = field(default_factory=Counter)
    given_up: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    """By `name/source`."""
    held: dict[str, float] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        return self.tiers.total() + self.sheds.total()

    def is_trouble(self, best: str) -> bool:
        return bool(self.sheds or self.held) or any(n for tier, n in self.tiers.items() if tier != best)


@dataclass(frozen=True, slots=True)
class Told:
    """An event of the chronicle."""

    at: float
    kind: str
    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Incident:
    """One stretch of trouble, with the events around it."""

    model: str
    tiers: Sequence[TierFacts]
    moments: Sequence[Moment]
    """Those without traffic are left out."""
    events: Sequence[Told]
    calm_s: float
    """Since its last loss."""

    @property
    def is_over(self) -> bool:
        return self.calm_s > CALM_S

    @property
    def goes_on(self) -> bool:
        """Whether the latest rows still show losses; they are filed some seconds late."""
        return self.calm_s <= 2 * ROW_S

    @property
    def begins_at(self) -> float:
        return self.moments[0].at

    @property
    def ends_at(self) -> float:
        return self.moments[-1].at + ROW_S

    @property
    def best(self) -> TierFacts:
        return self.tiers[0]

    def total(self, kind: str) -> Counter[str]:
        """Of `tiers`, `reasons`, `sheds`, `streams`, `given_up` or `features`."""
        total: Counter[str] = Counter()
        for moment in self.moments:
            total.update(getattr(moment, kind))
        return total

    @property
    def lower(self) -> int:
        """Answers that were not the best tier's."""
        answers = self.total("tiers")
        return answers.total() - answers[self.best.name]

    @property
    def mean_quality(self) -> float | None:
        worth = {tier.name: tier.quality for tier in self.tiers}
        answers = {name: count for name, count in self.total("tiers").items() if name in worth}
        total = sum(answers.values())
        return sum(worth[name] * count for name, count in answers.items()) / total if total else None


def tiers_of(ladder: Iterable[Json]) -> list[TierFacts]:
    names = TierFacts.__dataclass_fields__
    return [TierFacts(**{k: v for k, v in tier.items() if k in names}) for tier in ladder]


def moments_of(model: str, pages: Iterable[Json]) -> list[Moment]:
    """The model's ten-second rows, summed over gateways, oldest first."""
    found: dict[float, Moment] = {}
    for page in pages:
        for row in page["rows"]:
            told = row["models"].get(model)
            if told:
                _add(found.setdefault(row["at"], Moment(row["at"])), told)
    return [found[at] for at in sorted(found)]


def _add(moment: Moment, told: Json) -> None:
    for kind in ("tiers", "reasons", "sheds", "streams", "given_up", "features"):
        getattr(moment, kind).update(told.get(kind, {}))
    for tier, share in told.get("held", {}).items():
        moment.held[tier] = min(share, moment.held.get(tier, 1.0))


def events_of(pages: Iterable[Json]) -> list[Told]:
    """What the gateways told, each thing once, in order."""
    events = sorted(
        (Told(e["at"], e["kind"], e["text"], e.get("count", 1)) for page in pages for e in page["events"]),
        key=lambda told: told.at,
    )
    kept: list[Told] = []
    for event in events:
        if not any(event.text == other.text and event.at - other.at <= ROW_S for other in kept[-50:]):
            kept.append(event)
    return kept


def incidents(
    model: str, tiers: Sequence[TierFacts], moments: Sequence[Moment], events: Sequence[Told], now: float
) -> list[Incident]:
    """The model's incidents, oldest first."""
    best = tiers[0].name
    stretches: list[list[Moment]] = []
    for moment in moments:
        if not moment.is_trouble(best):
            continue
        if stretches and moment.at - stretches[-1][-1].at <= CALM_S:
            # What was calm in between belongs to it.
            stretches[-1] += [m for m in moments if stretches[-1][-1].at < m.at < moment.at] + [moment]
        else:
            stretches.append([moment])
    return [_incident(model, tiers, stretch, events, now) for stretch in stretches]


def _incident(
    model: str, tiers: Sequence[TierFacts], stretch: Sequence[Moment], events: Sequence[Told], now: float
) -> Incident:
    begins_at, ends_at = stretch[0].at - BEFORE_S, stretch[-1].at + ROW_S + AFTER_S
    near = [e for e in events if begins_at <= e.at <= ends_at]
    return Incident(model, tiers, stretch, near, calm_s=now - (stretch[-1].at + ROW_S))


@dataclass(frozen=True, slots=True)
class Given:
    """What one lower rung gave up in an incident."""

    tier: TierFacts
    answers: int
    seconds: float
    """In which it served at all, by tens."""
    what: str


def given_up(incident: Incident) -> list[Given]:
    """By rung, those that served."""
    found = []
    for tier in incident.tiers[1:]:
        served = [m for m in incident.moments if m.tiers[tier.name]]
        if served:
            answers = sum(m.tiers[tier.name] for m in served)
            found.append(Given(tier, answers, ROW_S * len(served), _what(tier, incident.best)))
    return found


def _what(tier: TierFacts, best: TierFacts) -> str:
    parts = [f"quality {tier.quality:g} instead of {best.quality:g}"]
    if tier.backend == "cache":
        age = f", at most {tier.max_age_s:g} s old" if tier.max_age_s else ""
        parts.append(f"freshness: answers given before{age}")
    if tier.backend == "canned":
        parts.append("the answer itself: a fixed text")
    said = {"max_tokens": "answers of at most {} tokens", "n": "at most {} choices", "logprobs": "no log probabilities",
            "context": "the oldest turns where they don't fit"}  # fmt: skip
    parts += [said.get(name, f"{name} {{}}").format(value) for name, value in tier.gives_up.items() if value]
    return "; ".join(parts)


def suggestions(incident: Incident, unproven: Sequence[str] = ()) -> list[str]:
    """What would have made it smaller, from what was seen. The weightiest first."""
    return [
        *_about_capacity(incident),
        *_about_replicas(incident),
        *_about_reasons(incident),
        *_about_the_rest(incident, unproven),
    ]


def _about_capacity(incident: Incident) -> Iterator[str]:
    sheds, reasons = incident.total("sheds"), incident.total("reasons")
    contended = sum(sheds[r] for r in ("queue_full", "deadline", "priority"))
    full = sum(reasons[r] for r in ("queue_full", "deadline", "priority", "backpressure"))
    if not contended and not full:
        return
    best = incident.best
    peak = max(incident.moments, key=lambda m: m.asked)
    could = max(m.tiers[best.name] for m in incident.moments)
    if could and peak.asked > could:
        more = ceil(best.replicas * (peak.asked / could - 1)) if best.replicas else 0
        replicas = (
            f"; about {more} more replica{'s' if more != 1 else ''} of {best.name} "
            f"(it has {best.replicas}) would have carried the peak"
            if more
            else ""
        )
        yield (
            f"Capacity: {peak.asked / ROW_S:.3g} requests a second came at the peak, and {best.name} answered "
            f"{could / ROW_S:.3g} at most{replicas}."
        )
    if contended and not any(t.backend not in ("canned", "cache") for t in incident.tiers[1:]):
        yield (
            f"{contended} requests were refused though somebody could have answered them worse: add a smaller "
            f"model as a tier below {best.name}."
        )
    elif contended:
        yield (
            f"{contended} requests were refused because every tier that their callers accept was full: more "
            "slots or replicas in the lowest tier of models, or callers that accept a lower one."
        )


def _about_replicas(incident: Incident) -> Iterator[str]:
    none = incident.total("sheds")
    gone = none["no_replica"] + none["no_tier"]
    if gone and not any(tier.is_always_there for tier in incident.tiers):
        yield f"{gone} requests were refused as nothing could answer them: end the ladder with a `canned` tier."
    lost = incident.total("reasons")["no_replica"]
    losses = Counter(e.text for e in incident.events if e.kind == "health" and " is down" in e.text)
    if not lost and not losses:
        return
    best = incident.best
    if best.replicas <= 1:
        yield f"{best.name} has {best.replicas} replica: with a second one, in another zone, its loss costs nothing."
    elif lost:
        yield (
            f"All {best.replicas} replicas of {best.name} were gone at once: look for what they share "
            "(host, zone, model server's version, weights)."
        )
    for text, count in losses.most_common(1):
        if count > 1:
            yield f"The same loss came {count} times: {text}."


def _about_reasons(incident: Incident) -> Iterator[str]:
    reasons, best = incident.total("reasons"), incident.best.name
    mends = {
        "pressure_ttft": "its `slots` may be more than its replicas can do within the SLO, or the SLO was not "
        "measured on this hardware",
        "pressure_queue": "the queue stood: capacity, or callers with shorter deadlines",
        "pressure_errors": "look at graceway_attempts_total by replica and result",
        "pressure_kv": "its KV cache is too small for its slots and lengths: fewer slots, or `max_model_len`",
        "pressure_lost": "it runs with too few replicas to lose that many",
        "pressure_dependencies": "mend what its requests need, or make that optional",
        "first_token_timeout": "first tokens did not come: long prompts, or an engine that stalls",
        "pinned": "if the pin was not meant, end it sooner (POST /admin/pin without a tier)",
        "override": "if the share was not meant, end it sooner (POST /admin/pin without a tier)",
    }
    for reason, count in reasons.most_common():
        if reason in mends:
            yield f"{count} answers came from lower tiers because {why(reason, best)}: {mends[reason]}."


def _about_the_rest(incident: Incident, unproven: Sequence[str]) -> Iterator[str]:
    if broken := incident.total("streams")["given_up"]:
        yield f"{broken} streams ended with an error event: more replicas of a tier let them go on."
    if any(e.kind == "store" and "not available" in e.text for e in incident.events):
        yield "The state store was away meanwhile: sessions lost their replicas' memory. Give it a replica of its own."
    if (late_s := _slow_return_s(incident)) > SLOW_RETURN_S:
        yield (
            f"Lower tiers went on answering for {late_s:.0f} s after {incident.best.name} could serve again: "
            "look what held it back (graceway_tier_signal)."
        )
    for tier in unproven:
        yield f"{tier} is unproven: `graceway drill tiers --tier {tier}` says whether it would hold next time."


def _slow_return_s(incident: Incident) -> float:
    back = [
        e.at
        for e in incident.events
        if e.text.startswith(f"{incident.best.name} of {incident.model} can serve again")
    ]
    lower = [m.at for m in incident.moments if m.tiers.total() > m.tiers[incident.best.name]]
    return max(lower) - max(back) if back and lower else 0.0
