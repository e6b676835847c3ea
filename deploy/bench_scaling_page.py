"""`graceway bench scaling` as a page: what each policy came to, and how many replicas it ran when."""

from collections.abc import Iterable, Iterator, Sequence
from math import ceil

from deploy.bench_scaling import HEAD, SCALERS, Claim, Row, cells, scaler_of
from deploy.document import Block, Heading, Items, Steps, Table, Text, as_html
from replicas.autoscaling.simulator import Tier, simulate
from replicas.autoscaling.traces import Trace, trace

EVERY_S = 10


def page(rows: Sequence[Row], judged: Iterable[Claim], seed: int) -> str:
    """One HTML page that needs nothing else; the lines are those of this seed."""
    return as_html("Graceway: scaling, simulated", list(_blocks(rows, judged, seed)))


def _blocks(rows: Sequence[Row], judged: Iterable[Claim], seed: int) -> Iterator[Block]:
    yield Heading(1, "Scaling, simulated")
    yield Text(
        "Graceway's policy, Serve's default and an oracle that knows the trace ahead of time, on the same arrivals. "
        "In time is who got a slot within the SLO."
    )
    yield Table(HEAD, [cells(row) for row in rows])
    yield Items([f"{'holds' if c.holds else 'FAILS'}: {c.text} ({c.seen})" for c in judged])
    for name in dict.fromkeys(row.trace for row in rows):
        yield Heading(2, name)
        yield Text(f"Replicas asked for over time, seed {seed}; needed is what the rate alone takes.")
        yield _lines(trace(name, seed), seed)


def _lines(chosen: Trace, seed: int) -> Steps:
    tier = Tier()
    ran = [(name, simulate(chosen, scaler_of(name, chosen, tier), tier, seed).targets) for name in SCALERS]
    return Steps(chosen.length_s, [*ran, ("needed", _needed(chosen, tier))])


def _needed(chosen: Trace, tier: Tier) -> list[tuple[float, float]]:
    slots = tier.slots * tier.spec.utilization
    moments = range(0, int(chosen.length_s), EVERY_S)
    return [(float(at), ceil(chosen.rate(at) * tier.service_s / slots - 1e-9)) for at in moments]
