"""How a model stands, in one plain sentence: who serves it, what is given up, why, and what that costs. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.reason_words import in_words

Level = Literal["best", "reduced", "degraded", "down"]
"""Served by the best tier; the same with less to fall back on; a lower tier serves or requests are refused; nothing serves."""

RECENT_S = 10
"""What counts as now."""

_WHY = {
    "queue_full": "{tier} was full",
    "deadline": "{tier} could not have begun in time",
    "priority": "{tier} kept its places for more important requests",
    "rate_limited": "a rate limit was reached",
    "backpressure": "{tier} pushed back",
    "no_replica": "no replica of {tier} could serve",
    "no_tier": "no other tier could answer",
    "context": "{tier}'s window is shorter than the prompt",
    "budget": "{tier} had too little money left",
    "miss": "{tier} had kept no answer",
    "first_token_timeout": "{tier} was too slow with its first token",
    "slow": "{tier} was too slow",
    "resumed": "streams went on there",
    "pinned": "an operator pinned a lower tier",
    "override": "an operator set {tier}'s share",
    "pressure_ttft": "{tier}'s first tokens came later than promised",
    "pressure_errors": "too many attempts on {tier} failed",
    "pressure_queue": "waits for {tier} were too long",
    "pressure_kv": "{tier} had hardly any KV cache left",
    "pressure_lost": "{tier} had lost replicas",
    "pressure_dependencies": "what {tier}'s requests need was missing",
}


@dataclass(frozen=True, slots=True)
class Rung:
    """One tier as it stands: `out` says of each replica that may get nothing now what is wrong with it.

    `share` is what the ladder lets it have of its traffic, and `held_because` why that is not all; `lacks` says what else
    it is short of.
    """

    name: str
    quality: float
    is_serving: bool
    replicas: int = 0
    out: tuple[str, ...] = ()
    share: float = 1.0
    held_because: str = ""
    lacks: str = ""

    @property
    def takes_requests(self) -> bool:
        return self.is_serving and self.share > 0.0


@dataclass(frozen=True, slots=True)
class Recent:
    """What became of the requests of the last `RECENT_S` seconds."""

    answers: Mapping[str, int] = field(default_factory=dict)
    """By tier."""
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Of lower tiers' answers."""
    sheds: Mapping[str, int] = field(default_factory=dict)
    """By reason."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A level, the sentence that explains it, and what it costs (empty when nothing).

    `cause` is the tier whose absence the sentence is about, empty when it is about traffic or an operator's word.
    """

    level: Level
    text: str
    cost: str = ""
    cause: str = ""


def standing(model: str, rungs: Sequence[Rung], recent: Recent) -> Standing:
    """How a model stands. `rungs` are best first."""
    serving = next((r for r in rungs if r.takes_requests), None) or next(
        (r for r in rungs if r.is_serving), None
    )
    if serving is None:
        why = " and ".join(_outage(r) for r in rungs)
        return Standing("down", f"{model} can't be served: {why}", _refused(recent), rungs[-1].name)
    if serving is not rungs[0]:
        place = rungs.index(serving)
        why = " and ".join(_absence(r) for r in rungs[:place])
        text = f"{model} is served by {serving.name} because {why}{_troubles(rungs[place:])}"
        cause = "" if rungs[0].is_serving else rungs[0].name
        return Standing("degraded", text, _cost(rungs, recent), cause)
    return _by_its_best(model, rungs, recent)


def _by_its_best(model: str, rungs: Sequence[Rung], recent: Recent) -> Standing:
    best, served = rungs[0], f"{model} is served by {rungs[0].name}"
    lower = {n: c for n, c in recent.answers.items() if n != best.name and c}
    fewer = f"; {_some_out(best)}" if best.out else ""
    below = _troubles(rungs[1:])
    if lower:
        share = sum(lower.values()) / sum(recent.answers.values())
        names = _listed(sorted(lower, key=lambda n: -lower[n]))
        of = f"{_percent(share)} of {model}'s answers in the last {RECENT_S} s"
        text = f"{of} came from {names} because {_why(best, recent)}{fewer}{below}"
        return Standing("degraded", text, _cost(rungs, recent))
    if recent.sheds:
        return Standing("degraded", f"{served} but requests are refused{fewer}{below}", _cost(rungs, recent))
    held = f"; {_held(best)}" if best.share < 1.0 else ""
    level: Level = "reduced" if fewer or held or below else "best"
    return Standing(level, served + held + fewer + below, cause="" if fewer or held else _first_out(rungs))


def _first_out(rungs: Sequence[Rung]) -> str:
    return next((r.name for r in rungs if not r.is_serving), "")


def _troubles(rungs: Sequence[Rung]) -> str:
    """What is wrong with tiers that are not the ones spoken of: what there is to fall back on is less than it seems."""
    return "".join(f"; {what}" for rung in rungs for what in _trouble(rung))


def _trouble(rung: Rung) -> Iterator[str]:
    if not rung.is_serving:
        yield _outage(rung)
        return
    if rung.out:
        yield _some_out(rung, f"{rung.name}'s")
    if rung.share < 1.0:
        yield _held(rung)
    if rung.lacks:
        yield f"{rung.name} {rung.lacks}"


def _held(rung: Rung) -> str:
    share = "none" if rung.share <= 0 else _percent(rung.share)
    return f"{rung.name} may have {share} of its traffic because {why(rung.held_because, rung.name)}"


def _absence(rung: Rung) -> str:
    """Why a tier answers nothing."""
    return why(rung.held_because, rung.name) if rung.is_serving else _outage(rung)


def _why(best: Rung, recent: Recent) -> str:
    if not recent.reasons:
        return f"{best.name} did not answer"
    reason = max(recent.reasons, key=lambda r: recent.reasons[r])
    return why(reason, best.name)


def why(reason: str, tier: str) -> str:
    """Why a tier did not answer, in words: of answers that were given, so in the past."""
    return (
        _WHY[reason].format(tier=tier)
        if reason in _WHY
        else f"replicas of {tier} failed ({in_words(reason)})"
    )


def _outage(rung: Rung) -> str:
    """Why a tier can't serve: what is wrong with its replicas."""
    if not rung.replicas:
        return f"{rung.name} has no replica"
    whats = Counter(rung.out)
    if len(whats) > 1:
        parts = [f"{count} {'is' if count == 1 else 'are'} {what}" for what, count in whats.most_common()]
        return f"of {rung.name}'s {rung.replicas} replicas {_listed(parts)}"
    what = next(iter(whats), "not in rotation")
    if rung.replicas == 1:
        return f"the {rung.name} replica is {what}"
    return f"{'both' if rung.replicas == 2 else f'all {rung.replicas}'} {rung.name} replicas are {what}"


def _some_out(rung: Rung, whose: str = "its") -> str:
    parts = [
        f"{count} {'is' if count == 1 else 'are'} {what}" for what, count in Counter(rung.out).most_common()
    ]
    return f"of {whose} {rung.replicas} replicas {_listed(parts)}"


def _cost(rungs: Sequence[Rung], recent: Recent) -> str:
    """What is given up: the mean quality of the answers against the best tier's, and who got none."""
    worth = {r.name: r.quality for r in rungs}
    answers = {n: c for n, c in recent.answers.items() if n in worth and c}
    parts = []
    if answers:
        mean = sum(worth[n] * c for n, c in answers.items()) / sum(answers.values())
        if f"{mean:.3g}" != f"{rungs[0].quality:.3g}":
            parts.append(
                f"mean quality {mean:.3g} instead of {rungs[0].quality:.3g} over the last {RECENT_S} s"
            )
    if refused := _refused(recent):
        parts.append(refused)
    return "; ".join(parts)


def _refused(recent: Recent) -> str:
    if not recent.sheds:
        return ""
    count = sum(recent.sheds.values())
    by = ", ".join(
        f"{in_words(reason)} {n}" for reason, n in sorted(recent.sheds.items(), key=lambda s: -s[1])
    )
    return f"{count} request{'' if count == 1 else 's'} refused in the last {RECENT_S} s ({by})"


def _percent(share: float) -> str:
    if share >= 1.0:
        return "all"
    if 0.01 <= share <= 0.99:
        return f"{share * 100:.0f} %"
    return "less than 1 %" if share < 0.5 else "more than 99 %"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
