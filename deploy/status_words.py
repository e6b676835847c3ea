"""What a gateway's `/status` says, in the words that `graceway status` and `graceway top` share. Pure."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from gateway.events import lasting
from gateway.reason_words import in_words

Report = Mapping[str, Any]
_WORST_FIRST = ("down", "degraded", "reduced", "best")


def clock(unix: float, now: float) -> str:
    """The time of day; of another day, with its date."""
    at = datetime.fromtimestamp(unix)
    is_today = not now or at.date() == datetime.fromtimestamp(now).date()
    return f"{at:%H:%M:%S}" if is_today else f"{at:%b} {at.day} {at:%H:%M:%S}"


def by_urgency(models: Mapping[str, Report]) -> list[tuple[str, Report]]:
    """The models, what stands worst first."""

    def rank(entry: tuple[str, Report]) -> int:
        level = (entry[1].get("standing") or {}).get("level")
        return _WORST_FIRST.index(level) if level in _WORST_FIRST else len(_WORST_FIRST)

    return sorted(models.items(), key=rank)


def since(standing: Report, now: float) -> str:
    at = standing.get("since")
    return f" since {clock(at, now)}" if at else ""


def share_of_minute(tier: Report, model: Report) -> float:
    """The part of the last minute's requests that the tier answered: those that were refused are among them."""
    answers, refused = model.get("answers_60s") or 0, sum((model.get("sheds_60s") or {}).values())
    share: float = tier.get("share_60s") or 0.0
    return share * answers / (answers + refused) if refused else share


def held(tier: Report) -> str:
    """What the ladder or an operator lets the tier have; empty when that is all."""
    allotted = tier.get("allotted", 1.0)
    if allotted >= 1.0:
        return ""
    ends_in_s = tier.get("override_ends_in_s")
    more = f", for {lasting(ends_in_s)} more" if ends_in_s else ""
    return f"may have {allotted:.0%} ({in_words(tier.get('held_because') or 'ladder')}{more})"


def store_text(report: Report) -> str:
    """How the state store is, and what that means."""
    store = report.get("state_store") or {}
    name = store.get("url")
    if store.get("available"):
        return f"state store: {name}, available"
    reason = f" ({store['error']})" if store.get("error") else ""
    began = since(store, float(report.get("now") or 0.0))
    return f"state store: {name}, not available{began}{reason}; requests go on without it"


def config_lines(report: Report) -> Iterator[tuple[str, bool]]:
    """How the config in force stands to its file, where they differ, and whether that is a fault."""
    config = report.get("config") or {}
    now = float(report.get("now") or 0.0)
    if at := config.get("refused_at"):
        where = f" ({config['refused_because']})" if config.get("refused_because") else ""
        since_ = clock(float(config.get("in_force_since") or 0.0), now)
        told = f"config: the file was refused at {clock(at, now)}{where}, the one of {since_} stays in force"
        yield f"{told}; `graceway check -c FILE` says why", True
    if waiting := config.get("needs_restart"):
        yield f"config: only a restart applies what changed in {', '.join(waiting)}", False


def waiting_by_priority(model: Report) -> dict[str, int]:
    waiting: dict[str, int] = {}
    for tier in model["tiers"]:
        for priority, count in (tier.get("waiting_by_priority") or {}).items():
            waiting[priority] = waiting.get(priority, 0) + count
    return waiting


def minute(model: Report) -> Iterator[tuple[str, bool]]:
    """What the last minute brought, thing by thing, and whether it is a loss to clients. What did not happen is left out."""
    yield f"last minute: {model.get('answers_60s', 0)} answers", False
    has_lost_streams = bool((model.get("streams_60s") or {}).get("given_up"))
    found = (
        ("lower tier because", "degraded_60s", False),
        ("left out of answers", "given_up_60s", False),
        ("refused", "sheds_60s", True),
        ("broken streams", "streams_60s", has_lost_streams),
    )
    for said, name, is_bad in found:
        if counts := model.get(name):
            # What is left out goes by the names of the request's fields.
            told = counted(counts) if name == "given_up_60s" else listed(counts)
            yield f"{said}: {told}", is_bad
    for tier in model["tiers"]:
        if budget := tier.get("budget"):
            yield f"money for {tier['name']}: {money(budget)}", bool(budget["is_spent"])


def money(budget: Report) -> str:
    """What is left of a paid tier's budget."""
    of = f"of {budget['amount']:g} per {budget['per']}"
    more = f"; more in {lasting(budget['resets_in_s'])}"
    if budget["is_spent"]:
        return f"spent {of}{more}"
    if budget.get("is_short"):
        return f"{budget['left']:.3g} left {of}, too little for the latest request{more}"
    return f"{budget['left']:.3g} left {of}"


def listed(counts: Mapping[str, int]) -> str:
    return counted({in_words(name): count for name, count in counts.items()})


def counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
