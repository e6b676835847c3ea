"""Incidents in a chronicle of literals: where they begin and end, what was given up, what is suggested."""

from typing import Any

import pytest

from deploy.document import Shares, as_html, as_markdown
from deploy.incident import Incident, TierFacts, events_of, given_up, incidents, moments_of, suggestions
from deploy.incident_report import report_on

Json = dict[str, Any]
AT = 1_700_000_400.0
BEST = TierFacts("best", "openai", 1.0, replicas=2, slots=8)
SMALL = TierFacts("small", "llamacpp", 0.6, replicas=1, gives_up={"max_tokens": 256})
CANNED = TierFacts("canned", "canned", 0.0)
LADDER = (BEST, SMALL, CANNED)


def row(second: int, best: int = 0, small: int = 0, **more: Json) -> Json:
    tiers = {"best": best, "small": small}
    return {"at": AT + second, "models": {"chat": {"tiers": {k: v for k, v in tiers.items() if v}, **more}}}


def page(*rows: Json, events: tuple[Json, ...] = ()) -> Json:
    return {"gateway": "g", "begins_at": AT, "rows": list(rows), "events": list(events)}


def event(second: float, text: str, kind: str = "health", count: int = 1) -> Json:
    return {"at": AT + second, "last_at": AT + second, "kind": kind, "text": text, "count": count}


def found(*pages: Json, tiers: tuple[TierFacts, ...] = LADDER, now: float = 5000.0) -> list[Incident]:
    return incidents("chat", tiers, moments_of("chat", pages), events_of(pages), AT + now)


@pytest.mark.parametrize(
    ("rows", "spans"),
    [
        ([], []),
        ([row(0, 50), row(10, 50)], []),
        ([row(0, 50), row(10, 40, 10), row(20, 50)], [(10, 20)]),
        ([row(0, sheds={"queue_full": 1})], [(0, 10)]),
        ([row(0, held={"best": 0.5})], [(0, 10)]),
        # a minute of calm ends it, less does not
        ([row(0, 0, 9), row(10, 50), row(60, 0, 9), row(130, 0, 9)], [(0, 70), (130, 140)]),
    ],
)
def test_where_incidents_begin_and_end(rows: list[Json], spans: list[tuple[int, int]]) -> None:
    assert [(i.begins_at - AT, i.ends_at - AT) for i in found(page(*rows))] == spans


def test_gateways_are_summed_and_what_both_tell_is_told_once() -> None:
    one = page(row(0, 5, 5), events=(event(1, "r is down"),))
    other = page(row(0, 1, 9), row(10, 0, 3), events=(event(3, "r is down"), event(4, "r is ready")))
    (incident,) = found(one, other)
    assert incident.total("tiers") == {"best": 6, "small": 17}
    assert [e.text for e in incident.events] == ["r is down", "r is ready"]
    assert incident.mean_quality == pytest.approx((6 + 17 * 0.6) / 23)


def test_what_each_rung_gave_up_and_for_how_long() -> None:
    (incident,) = found(page(row(0, 5, 5), row(10, 5, 7), row(20, 10, tiers={"canned": 2})))
    assert [(g.tier.name, g.answers, g.seconds) for g in given_up(incident)] == [
        ("small", 12, 20.0),
        ("canned", 2, 10.0),
    ]
    assert given_up(incident)[0].what == "quality 0.6 instead of 1; answers of at most 256 tokens"
    assert given_up(incident)[1].what == "quality 0 instead of 1; the answer itself: a fixed text"


@pytest.mark.parametrize(
    ("rows", "events", "tiers", "said"),
    [
        ([row(0, 160, 320, reasons={"queue_full": 320})], (), LADDER,
         "48 requests a second came at the peak, and best answered 16 at most; about 4 more replicas of best (it has 2)"),
        ([row(0, 100, sheds={"queue_full": 50})], (), (BEST, CANNED), "add a smaller model as a tier below best"),
        ([row(0, 100, sheds={"deadline": 50})], (), LADDER, "every tier that their callers accept was full"),
        ([row(0, sheds={"no_replica": 9})], (), (BEST, SMALL), "end the ladder with a `canned` tier"),
        ([row(0, 0, 9, reasons={"no_replica": 9})], (), LADDER, "All 2 replicas of best were gone at once"),
        ([row(0, 0, 9, reasons={"no_replica": 9})], (), (TierFacts("best", "vllm", 1.0, 1), SMALL),
         "with a second one, in another zone"),
        ([row(0, 5, 9, reasons={"pressure_kv": 9})], (), LADDER, "fewer slots, or `max_model_len`"),
        ([row(0, 5, 9, reasons={"pinned": 9})], (), LADDER, "if the pin was not meant"),
        ([row(0, 5, 9, streams={"given_up": 2})], (), LADDER, "2 streams ended with an error event"),
        ([row(0, 5, 9)], (event(2, "the state store is not available; requests go on without it", "store"),), LADDER,
         "The state store was away"),
        ([row(0, 0, 9), row(10, 0, 9), row(20, 5, 9), row(30, 5, 5)],
         (event(2, "best of chat can serve again, after 2 s", "ladder"),), LADDER,
         "went on answering for 28 s after best could serve again"),
        ([row(0, 5, 9)], tuple(event(n * 20, "r (chat, best) is down (refused)") for n in range(2)), LADDER,
         "The same loss came 2 times"),
    ],
)  # fmt: skip
def test_what_to_change(
    rows: list[Json], events: tuple[Json, ...], tiers: tuple[TierFacts, ...], said: str
) -> None:
    (incident,) = found(page(*rows, events=events), tiers=tiers)
    assert said in "\n".join(suggestions(incident))


def test_a_blip_calls_for_nothing_and_an_unproven_rung_for_a_drill() -> None:
    (incident,) = found(page(row(0, 50, held={"best": 0.9})))
    assert suggestions(incident) == []
    assert "graceway drill tiers --tier small" in suggestions(incident, ["small"])[0]


HOSTILE = "<script>alert(1)</script> | `x`"


def test_the_report_in_both_forms() -> None:
    rows = [row(10 * n, 5, n, sheds={"queue_full": 1}) for n in range(200)]
    (incident,) = found(page(*rows, events=(event(5, HOSTILE, count=3),)))
    blocks = report_on(incident)
    markdown, html = as_markdown(blocks), as_html("t", blocks)
    assert "## What each rung gave up" in markdown
    assert "| queue full | 200 |" in markdown
    assert f"{HOSTILE} (3 times)" in markdown
    assert "<script>" not in html
    assert "http" not in html.replace("<!doctype html>", ""), "it needs nothing from elsewhere"
    assert html.count("<rect") > 200
    (drawn,) = [b for b in blocks if isinstance(b, Shares)]
    assert len(drawn.columns) <= 180
    assert sum(sum(counts) for _, counts in drawn.series) == sum(5 + n + 1 for n in range(200))


def test_an_incident_that_goes_on_says_so() -> None:
    (now,) = found(page(row(0, 0, 9)), now=15.0)
    (over,) = found(page(row(0, 0, 9)), now=500.0)
    assert [i.is_over for i in (now, over)] == [False, True]
    assert "it is not over" in as_markdown(report_on(now))
    (calm,) = found(page(row(0, 0, 9)), now=50.0)
    said = as_markdown(report_on(calm))
    assert "it is not over" not in said
    assert "), calm for 40 s since, " in said
    assert not calm.is_over
