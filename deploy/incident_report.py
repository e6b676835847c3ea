"""An incident told: what was given up, by whom and for how long, what happened in which order, what to change. Pure."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from deploy.document import Block, Heading, Items, Shares, Table, Text
from deploy.incident import ROW_S, Incident, Moment, given_up, suggestions
from gateway.events import lasting
from gateway.reason_words import in_words
from gateway.standing import why

MOST_ROWS = 24
MOST_COLUMNS = 180


def title_of(incident: Incident) -> str:
    return f"{incident.model}: incident of {datetime.fromtimestamp(incident.begins_at):%Y-%m-%d %H:%M:%S}"


def report_on(incident: Incident, unproven: Sequence[str] = ()) -> list[Block]:
    """The whole report."""
    return [
        Heading(1, title_of(incident)),
        Text(_headline(incident)),
        *_what_was_given_up(incident),
        *_refusals(incident),
        *_shares(incident),
        *_timeline(incident),
        *_changes(incident, unproven),
    ]


def _headline(incident: Incident) -> str:
    answers, refused = incident.total("tiers").total(), incident.total("sheds").total()
    span = f"From {_clock(incident.begins_at)} to {_clock(incident.ends_at)}"
    lasted = f" ({lasting(incident.ends_at - incident.begins_at)})"
    calm = "" if incident.is_over else f", calm for {lasting(incident.calm_s)} since,"
    going_on = ", and it is not over," if incident.goes_on else calm
    lower = (
        f"{incident.lower} of {answers} answers came from lower tiers ({_percent(incident.lower, answers)})"
    )
    said = f"{span}{lasted}{going_on} {lower}; {_counted(refused, 'request')} refused."
    quality = incident.mean_quality
    if quality is not None and quality < incident.best.quality:
        said += f" The answers were worth {quality:.3g} on average instead of {incident.best.quality:g}."
    if broken := incident.total("streams")["given_up"]:
        said += f" {_counted(broken, 'stream')} broken beyond mending."
    return said


def _what_was_given_up(incident: Incident) -> Iterator[Block]:
    yield Heading(2, "What each rung gave up")
    given = given_up(incident)
    if not given:
        yield Text(f"Nothing: all answers were {incident.best.name}'s.")
        return
    yield Table(
        ("tier", "answers", "for", "gave up"),
        [(g.tier.name, str(g.answers), lasting(g.seconds), g.what) for g in given],
    )
    best = incident.best.name
    reasons = incident.total("reasons").most_common()
    yield Items([f"{count} × {why(reason, best)}" for reason, count in reasons])
    if left_out := incident.total("given_up"):
        yield Text("Left out of requests: " + ", ".join(f"{what} {n}" for what, n in left_out.most_common()))
    features = incident.total("features")
    if lacking := {name: n for name, n in features.items() if not name.endswith("/fetched")}:
        yield Text(
            "Context features that were not fetched: " + ", ".join(f"{w} {n}" for w, n in lacking.items())
        )


def _refusals(incident: Incident) -> Iterator[Block]:
    if sheds := incident.total("sheds"):
        yield Heading(2, "Refusals")
        yield Table(
            ("reason", "requests"), [(in_words(reason), str(count)) for reason, count in sheds.most_common()]
        )


def _shares(incident: Incident) -> Iterator[Block]:
    yield Heading(2, "Shares over time")
    names = [tier.name for tier in incident.tiers]
    names += sorted({name for m in incident.moments for name in m.tiers} - set(names))
    fine, coarse = _gathered(incident.moments, MOST_COLUMNS), _gathered(incident.moments, MOST_ROWS)
    series = [(name, [m.tiers[name] for m in fine]) for name in names]
    yield Shares([_clock(m.at) for m in fine], [*series, ("refused", [m.sheds.total() for m in fine])])
    yield Table(
        ("from", *names, "refused", "held back"),
        [
            (
                _clock(m.at),
                *(_percent(m.tiers[name], m.asked) if m.tiers[name] else "–" for name in names),
                str(m.sheds.total() or "–"),
                ", ".join(f"{tier} to {share:.0%}" for tier, share in m.held.items()) or "–",
            )
            for m in coarse
        ],
    )


def _gathered(moments: Sequence[Moment], most: int) -> list[Moment]:
    """Neighbours summed, so that at most so many are left."""
    every = -(-len(moments) // most)
    return [_sum(moments[n : n + every]) for n in range(0, len(moments), every)]


def _sum(moments: Sequence[Moment]) -> Moment:
    total = Moment(moments[0].at)
    for moment in moments:
        total.tiers.update(moment.tiers)
        total.sheds.update(moment.sheds)
        for tier, share in moment.held.items():
            total.held[tier] = min(share, total.held.get(tier, 1.0))
    return total


def _timeline(incident: Incident) -> Iterator[Block]:
    yield Heading(2, "What happened")
    lines = [
        f"{_clock(event.at)} {event.text}" + (f" ({event.count} times)" if event.count > 1 else "")
        for event in incident.events
    ]
    yield Items(lines) if lines else Text("The chronicle tells of nothing but the figures above.")


def _changes(incident: Incident, unproven: Sequence[str]) -> Iterator[Block]:
    yield Heading(2, "What to change")
    found = suggestions(incident, unproven)
    yield (
        Items(found)
        if found
        else Text("Nothing stands out: it was short, or a tier was held back and nobody noticed.")
    )
    yield Text(
        f"Figures are sums of {ROW_S:g} s over all gateways; what a gateway that was killed had not yet filed is missing."
    )


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%H:%M:%S}"


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


def _counted(count: int, what: str) -> str:
    return f"{count} {what} was" if count == 1 else f"{count} {what}s were"
