"""Spans in OTLP's protobuf encoding, made of trails.

Written by hand, and checked in the tests against opentelemetry-proto: a span of its classes costs eight times as much,
one of the SDK thirty times, and the thread that makes them holds the interpreter meanwhile.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from struct import pack
from time import perf_counter_ns, time_ns

from gateway.trail import Outcome, Step, Trail

_SERVER, _CLIENT, _INTERNAL = 2, 3, 1
_ERROR = 2
_FAILED: frozenset[Outcome] = frozenset({"shed", "broken", "failed"})
_LONGEST = 256
"""Of an attribute's text, in characters."""
SCOPE = "graceway"


class Clock:
    """Turns `perf_counter` seconds into unix nanoseconds."""

    def __init__(self) -> None:
        self._offset_ns = time_ns() - perf_counter_ns()

    def unix_ns(self, at: float) -> int:
        return int(at * 1e9) + self._offset_ns


# the encoding: https://protobuf.dev/programming-guides/encoding, opentelemetry/proto/trace/v1/trace.proto


def varint(number: int) -> bytes:
    if number < 0x80:
        return bytes((number,))
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def field(number: int, data: bytes) -> bytes:
    """A field of bytes, of text, or of a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


@lru_cache(maxsize=4096)
def text(key: str, value: str) -> bytes:
    """KeyValue, of those that come again and again."""
    return _text(key, value)


def _text(key: str, value: str) -> bytes:
    return field(1, key.encode()) + field(2, field(1, value[:_LONGEST].encode("utf-8", "replace")))


def number_of(key: str, value: int) -> bytes:
    return field(1, key.encode()) + field(2, b"\x18" + varint(value))


def seconds_of(key: str, value: float) -> bytes:
    return field(1, key.encode()) + field(2, b"\x21" + pack("<d", value))


def _event(at_ns: int, name: str, *attributes: bytes) -> bytes:
    parts = b"\x09" + pack("<Q", at_ns) + field(2, name.encode())
    return parts + b"".join(field(3, attribute) for attribute in attributes)


def _span(
    head: bytes,
    span_id: str,
    name: str,
    kind: int,
    times: bytes,
    attributes: Iterable[bytes],
    events: Iterable[bytes] = (),
    failure: str = "",
) -> bytes:
    """`head` are the fields of the trace and the parent."""
    parts = [head, b"\x12\x08", bytes.fromhex(span_id), _name_and_kind(name, kind), times]
    parts += [field(9, attribute) for attribute in attributes]
    parts += [field(11, event) for event in events]
    if failure:
        parts.append(_status(failure))
    return b"".join(parts)


@lru_cache(maxsize=256)
def _name_and_kind(name: str, kind: int) -> bytes:
    return field(5, name.encode()) + b"\x30" + varint(kind)


@lru_cache(maxsize=256)
def _status(failure: str) -> bytes:
    return field(15, field(2, failure.encode()) + b"\x18" + varint(_ERROR))


# of a trail


def spans_of(trail: Trail, clock: Clock) -> Iterator[bytes]:
    """All spans of one request, each a whole `Span` message."""
    root = trail.root
    assert root is not None, "only what is sampled is delivered"
    trace = field(1, bytes.fromhex(root.trace_id))
    below_root = trace + b"\x22\x08" + bytes.fromhex(root.span_id)
    ids = _child_ids(root.span_id)
    above = trace if trail.parent is None else trace + b"\x22\x08" + bytes.fromhex(trail.parent.span_id)
    last = trail.request.received_at
    yield _root(trail, above, root.span_id, clock)
    for step in trail.steps:
        last = max(last, step.ended_at)
        if step.name == "attempt":
            yield from _attempt(step, trace, below_root, ids, clock)
        else:
            attributes = _attributes(step)
            yield _span(
                below_root,
                next(ids),
                step.name,
                _INTERNAL,
                _times(step.began_at, step.ended_at, clock),
                attributes,
            )
    yield _span(below_root, next(ids), "settle", _INTERNAL, _times(last, trail.ended_at, clock), ())


def _child_ids(root_id: str) -> Iterator[str]:
    """Ids of spans that nobody else refers to: near the root's, which is random."""
    number = int(root_id, 16)
    while True:
        number = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF or 1
        yield f"{number:016x}"


def _times(began_at: float, ended_at: float, clock: Clock) -> bytes:
    return pack("<BQBQ", 0x39, clock.unix_ns(began_at), 0x41, clock.unix_ns(max(began_at, ended_at)))


def _root(trail: Trail, above: bytes, span_id: str, clock: Clock) -> bytes:
    request, last = trail.request, trail.last_attempt
    attributes = [
        text("gen_ai.operation.name", "chat" if request.kind == "chat" else "text_completion"),
        text("gen_ai.request.model", request.model),
        text("graceway.outcome", trail.outcome),
        text("graceway.priority", request.priority),
        _text("graceway.request_id", request.request_id),
    ]
    attributes += [text(f"graceway.{k}", v) for k, v in (("tier", trail.tier), ("reason", trail.reason)) if v]
    if request.session:
        attributes.append(_text("graceway.session", request.session))
    if request.tenant:
        attributes.append(text("graceway.tenant", request.tenant))
    if trail.ttft_s:
        attributes.append(seconds_of("graceway.ttft_s", trail.ttft_s))
    if last is not None:
        attributes.append(text("graceway.replica", last.replica))
        attributes.append(number_of("gen_ai.usage.output_tokens", last.after_tokens + last.tokens))
    times = _times(request.received_at, trail.ended_at, clock)
    failure = (trail.reason or trail.outcome) if trail.outcome in _FAILED else ""
    return _span(above, span_id, "gateway", _SERVER, times, attributes, _events(trail, clock), failure)


def _events(trail: Trail, clock: Clock) -> Iterator[bytes]:
    """What a person looks for in a trace: that quality was given up, that nobody answered, that a stream broke and went on."""
    for step in trail.attempts:
        if step.after_tokens:
            at_ns = clock.unix_ns(step.began_at)
            yield _event(at_ns, "resume", number_of("graceway.after_tokens", step.after_tokens))
    if trail.outcome in ("degraded", "shed", "broken"):
        yield _event(clock.unix_ns(trail.ended_at), trail.outcome, text("graceway.reason", trail.reason))


def _attributes(step: Step) -> list[bytes]:
    told = (("tier", step.tier), ("replica", step.replica), ("reason", step.reason))
    return [text(f"graceway.{name}", value) for name, value in told if value]


def _attempt(
    step: Step, trace: bytes, below_root: bytes, ids: Iterator[str], clock: Clock
) -> Iterator[bytes]:
    """The attempt and, below it, its two parts."""
    span_id = step.span_id or next(ids)
    attributes = [*_attributes(step), number_of("gen_ai.usage.output_tokens", max(0, step.tokens))]
    if step.after_tokens:
        attributes.append(number_of("graceway.after_tokens", step.after_tokens))
    times = _times(step.began_at, step.ended_at, clock)
    yield _span(below_root, span_id, "attempt", _CLIENT, times, attributes, (), step.reason)
    below = trace + b"\x22\x08" + bytes.fromhex(span_id)
    first_at = step.first_token_at or step.ended_at
    yield _span(below, next(ids), "prefill", _INTERNAL, _times(step.began_at, first_at, clock), ())
    if step.first_token_at:
        yield _span(below, next(ids), "decode", _INTERNAL, _times(first_at, step.ended_at, clock), ())


def batch_of(resource: bytes, spans: Iterable[bytes]) -> bytes:
    """An ExportTraceServiceRequest. `resource` is what all spans have in common, from `resource_of`."""
    scope = field(1, field(1, SCOPE.encode()))
    return field(1, resource + field(2, scope + b"".join(field(2, span) for span in spans)))


def resource_of(attributes: dict[str, str]) -> bytes:
    """The resource's field of ResourceSpans."""
    return field(1, b"".join(field(1, _text(key, value)) for key, value in attributes.items()))
