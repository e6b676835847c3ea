"""Trails as OTLP, read back with opentelemetry's own classes."""

from random import Random

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from gateway.otlp import batch_of, resource_of, spans_of, varint
from gateway.request import Request
from gateway.trace_context import TraceContext
from gateway.trail import Outcome, Step, Trail

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", 0x00F067AA0BA902B7
OFFSET_NS = 1_800_000_000_000_000_000
FIRST, SECOND, CALLER = 0xAAAAAAAAAAAAAAAA, 0xBBBBBBBBBBBBBBBB, 0xCCCCCCCCCCCCCCCC
RESUMED = [
    Step("decide", 100.0, 100.1, "primary"),
    Step("queue", 100.1, 100.5, "primary"),
    Step("attempt", 100.5, 103.0, "primary", "a", "cut", 12, 0, 101.0, FIRST),
    Step("decide", 103.0, 103.1, "primary", "", "resumed"),
    Step("attempt", 103.1, 105.0, "primary", "b", "", 28, 12, 103.5, SECOND),
]


def trail(steps: list[Step], outcome: Outcome, parent: bool = False, **asked: str) -> Trail:
    request = Request("chat", {}, "chat", "the-id", 10, received_at=99.9, **asked)  # type: ignore[arg-type]
    above = TraceContext(TRACE, CALLER, True) if parent else None
    made = Trail(request, lambda _: None, Random(1), above, TraceContext(TRACE, SPAN, True))
    made.steps, made.outcome, made.tier, made.ended_at = steps, outcome, "primary", 105.2
    return made


def number(span_id: bytes) -> int:
    return int.from_bytes(span_id, "big")


def sent(made: Trail) -> list[Span]:
    body = batch_of(resource_of({"service.name": "graceway"}), [spans_of([made], OFFSET_NS)])
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert [(a.key, a.value.string_value) for a in resource.resource.attributes] == [
        ("service.name", "graceway")
    ]
    (scope,) = resource.scope_spans
    assert scope.scope.name == "graceway"
    return list(scope.spans)


def attributes(span: Span) -> dict[str, object]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value") or "") for a in span.attributes}


def test_a_stream_that_broke_and_went_on() -> None:
    spans = sent(trail(RESUMED, "served", session="s-1"))
    assert [s.name for s in spans] == [
        "gateway", "decide", "queue", "attempt", "prefill", "decode", "decide", "attempt", "prefill", "decode", "settle",
    ]  # fmt: skip
    assert {s.trace_id.hex() for s in spans} == {TRACE}
    assert len({s.span_id for s in spans}) == len(spans)
    root, first, second = spans[0], spans[3], spans[7]
    assert (number(root.span_id), root.parent_span_id, root.kind) == (SPAN, b"", Span.SPAN_KIND_SERVER)
    assert {s.parent_span_id for s in spans if s.name in ("decide", "queue", "attempt", "settle")} == {
        root.span_id
    }
    assert (number(first.span_id), number(second.span_id)) == (FIRST, SECOND)
    assert [number(s.parent_span_id) for s in spans if s.name == "decode"] == [FIRST, SECOND]
    assert first.kind == Span.SPAN_KIND_CLIENT
    assert (first.status.code, first.status.message, second.status.code) == (2, "cut", 0)
    assert attributes(second) == {
        "graceway.tier": "primary", "graceway.replica": "b", "gen_ai.usage.output_tokens": 28, "graceway.after_tokens": 12,
    }  # fmt: skip
    (event,) = root.events
    assert (event.name, event.attributes[0].value.int_value) == ("resume", 12)
    told = attributes(root)
    assert told["graceway.replica"] == "b"
    assert told["gen_ai.usage.output_tokens"] == 40
    assert told["graceway.session"] == "s-1"
    assert root.end_time_unix_nano == OFFSET_NS + 105_200_000_000
    # To within the precision of a float of seconds.
    assert abs(root.end_time_unix_nano - root.start_time_unix_nano - 5_300_000_000) < 1000
    for span in spans:
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano


def test_a_caller_that_traces_is_the_parent() -> None:
    assert sent(trail(RESUMED, "served", parent=True))[0].parent_span_id == CALLER.to_bytes(8, "big")


def test_a_refusal_is_an_error_and_says_why() -> None:
    made = trail([Step("decide", 100.0, 100.1, "", "", "queue_full")], "shed")
    made.reason = "queue_full"
    spans = sent(made)
    assert [s.name for s in spans] == ["gateway", "decide", "settle"]
    assert (spans[0].status.code, spans[0].status.message) == (2, "queue_full")
    assert [e.name for e in spans[0].events] == ["shed"]


def test_giving_up_quality_is_no_error_but_shows() -> None:
    made = trail([Step("attempt", 100.0, 101.0, "primary", "a", "", 5, 0, 100.5, FIRST)], "degraded")
    made.reason = "no_replica"
    root = sent(made)[0]
    assert root.status.code == 0
    assert [(e.name, e.attributes[0].value.string_value) for e in root.events] == [("degraded", "no_replica")]


@pytest.mark.parametrize(
    ("attempt", "parts"),
    [
        # Nothing but the attempt is known of it before its first token.
        (Step("attempt", 100.0, 101.0, "primary", "a", "refused"), []),
        (Step("attempt", 100.0, 101.0, "primary", "a"), []),
        # An answer of one token ends with it; one that hung behind its first token was decoding.
        (Step("attempt", 100.0, 101.0, "primary", "a", "", 1, 0, 100.9), []),
        (Step("attempt", 100.0, 101.0, "primary", "a", "hang", 1, 0, 100.2), ["prefill", "decode"]),
        (Step("attempt", 100.0, 101.0, "primary", "a", "", 2, 0, 100.2), ["prefill", "decode"]),
    ],
)
def test_parts_of_an_attempt_that_say_more_than_it(attempt: Step, parts: list[str]) -> None:
    spans = sent(trail([attempt], "served"))
    assert [s.name for s in spans] == ["gateway", "attempt", *parts, "settle"]
    assert {s.parent_span_id for s in spans[2:-1]} <= {spans[1].span_id}
    assert len({s.span_id for s in spans}) == len(spans)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (Step("auth", 100.0, 100.5), {}),
        (Step("context features", 100.0, 100.5), {}),
        (Step("decide", 100.0, 100.5, "primary"), {"graceway.tier": "primary"}),
        (Step("decide", 100.0, 100.5, "", "", "queue_full"), {"graceway.reason": "queue_full"}),
        (Step("queue", 100.0, 100.5, "primary"), {"graceway.tier": "primary"}),
        # Clocks that are read in another order than things happen never make a span of less than nothing.
        (Step("context", 100.0, 99.9), {}),
    ],
)
def test_a_step_is_a_span_below_the_requests(step: Step, told: dict[str, object]) -> None:
    root, span, settle = sent(trail([step], "served"))
    assert (span.name, span.kind, span.status.code) == (step.name, Span.SPAN_KIND_INTERNAL, 0)
    assert attributes(span) == told
    assert span.parent_span_id == settle.parent_span_id == root.span_id
    lasted_ns = max(0.0, step.ended_at - step.began_at) * 1e9
    assert abs(span.end_time_unix_nano - span.start_time_unix_nano - lasted_ns) < 1000
    assert span.start_time_unix_nano == OFFSET_NS + 100_000_000_000


@pytest.mark.parametrize("span_id", [1, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF])
def test_ids_of_any_size(span_id: int) -> None:
    attempt = Step("attempt", 100.0, 101.0, "primary", "a", "", 5, 0, 100.5, span_id)
    made = trail([attempt], "served", parent=True)
    made.root = made.parent = TraceContext(TRACE, span_id, True)
    root, below, *parts, settle = sent(made)
    assert {number(i) for i in (root.span_id, root.parent_span_id, below.span_id)} == {span_id}
    assert {number(s.parent_span_id) for s in (below, *parts, settle)} == {span_id}


def test_a_clock_that_stands_at_its_beginning_costs_nobody_an_answer() -> None:
    made = trail(RESUMED, "served")
    body = batch_of(resource_of({}), [spans_of([made], -(10**15))])
    assert len(ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans) == 11


def test_requests_that_went_the_same_way_keep_what_is_theirs() -> None:
    first, second = (trail(RESUMED, "served", session=session) for session in ("a", "b"))
    second.request_id, second.root = "an-id", TraceContext("1" * 32, 7, True)
    for made in (first, second):
        root, *below = sent(made)
        assert made.root is not None
        assert (root.trace_id.hex(), number(root.span_id)) == (made.root.trace_id, made.root.span_id)
        assert attributes(root)["graceway.request_id"] == made.request_id
        assert attributes(root)["graceway.session"] == made.session
        assert {s.trace_id for s in below} == {root.trace_id}


def test_text_that_is_long_or_odd_is_still_a_message() -> None:
    assert attributes(sent(trail(RESUMED, "served", session="ü" * 5000))[0])["graceway.session"] == "ü" * 256


def test_varints() -> None:
    assert [varint(n) for n in (0, 127, 128, 300, 2**63)] == [
        b"\x00", b"\x7f", b"\x80\x01", b"\xac\x02", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    ]  # fmt: skip
