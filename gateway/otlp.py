"""Spans in OTLP's protobuf encoding, made of trails.

Written by hand, and checked in the tests against opentelemetry-proto: a span of its classes costs eight times as much,
one of the SDK thirty times, and the thread that makes them holds the interpreter meanwhile.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from struct import Struct, pack
from time import perf_counter_ns, time_ns

from gateway.trail import Outcome, Step, Trail

_SERVER, _CLIENT, _INTERNAL = 2, 3, 1
_ERROR = 2
_FAILED: frozenset[Outcome] = frozenset({"shed", "broken", "failed"})
_LONGEST = 256
"""Of an attribute's text, in characters."""
SCOPE = "graceway"
_OPERATIONS = {"chat": "chat", "text": "text_completion", "embedding": "embeddings"}
"""OpenTelemetry's names."""


class Clock:
    """Turns `perf_counter` seconds into unix nanoseconds."""

    def __init__(self) -> None:
        self.offset_ns = time_ns() - perf_counter_ns()

    def unix_ns(self, at: float) -> int:
        return int(at * 1e9) + self.offset_ns


# the encoding: https://protobuf.dev/programming-guides/encoding, opentelemetry/proto/trace/v1/trace.proto


@lru_cache(maxsize=4096)
def varint(number: int) -> bytes:
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def field(number: int, data: bytes) -> bytes:
    """A field of bytes, of text, or of a message; its number is below 16."""
    size = len(data)
    if size < 0x80:
        return bytes((number << 3 | 2, size)) + data
    return bytes((number << 3 | 2,)) + varint(size) + data


def _key_value(key: str, value: str | int) -> bytes:
    told = (
        field(1, value[:_LONGEST].encode("utf-8", "replace"))
        if isinstance(value, str)
        else b"\x18" + varint(value)
    )
    return field(1, key.encode()) + field(2, told)


@lru_cache(maxsize=4096)
def _attribute(key: str, value: str | int) -> bytes:
    """A span's attribute, of those that come again and again."""
    return field(9, _key_value(key, value))


def _event(at_ns: int, name: str, key: str, value: str | int) -> bytes:
    return field(11, b"\x09" + pack("<Q", at_ns) + field(2, name.encode()) + field(3, _key_value(key, value)))


@lru_cache(maxsize=4096)
def _shape(
    name: str, kind: int, tier: str = "", replica: str = "", reason: str = "", failure: str = ""
) -> bytes:
    """What spans of one kind have in common: name, kind, where, why, and what they failed of."""
    told = (("tier", tier), ("replica", replica), ("reason", reason))
    attributes = b"".join(_attribute(f"graceway.{key}", value) for key, value in told if value)
    status = field(15, field(2, failure.encode()) + b"\x18" + varint(_ERROR)) if failure else b""
    return field(5, name.encode()) + b"\x30" + varint(kind) + attributes + status


@lru_cache(maxsize=4096)
def _root_shape(
    kind: str,
    model: str,
    outcome: str,
    priority: str,
    tenant: str,
    tier: str,
    replica: str,
    reason: str,
    failure: str,
) -> bytes:
    told = [
        ("gen_ai.operation.name", _OPERATIONS[kind]), ("gen_ai.request.model", model),
        ("graceway.outcome", outcome), ("graceway.priority", priority), ("graceway.tenant", tenant),
    ]  # fmt: skip
    attributes = b"".join(_attribute(key, value) for key, value in told if value)
    return _shape("gateway", _SERVER, tier, replica, reason, failure) + attributes


class _Trace:
    """Writes the spans of one trail, each with its length, as a batch holds them."""

    def __init__(self, trail: Trail, clock: Clock) -> None:
        assert trail.root is not None, "only what is sampled is delivered"
        self._offset_ns = clock.offset_ns
        self._root = trail.root.span_id
        self._trace = trail.root.trace_id.to_bytes(16, "big")
        self.spans: list[bytes] = []

    def next_id(self) -> int:
        """For a span that nobody else refers to: near the root's, which is random."""
        return (self._root + len(self.spans)) & 0xFFFFFFFFFFFFFFFF or 1

    def add(
        self, above: int, span_id: int, shape: bytes, began_at: float, ended_at: float, more: bytes = b""
    ) -> None:
        """`above` is the parent's id, 0 where there is none."""
        began_ns = int(began_at * 1e9) + self._offset_ns
        ended_ns = int(ended_at * 1e9) + self._offset_ns if ended_at > began_at else began_ns
        ids = _IDS(
            b"\x0a\x10", self._trace, b"\x12\x08", span_id.to_bytes(8, "big"), 0x39, began_ns, 0x41, ended_ns
        )
        parent = b"\x22\x08" + above.to_bytes(8, "big") if above else b""
        size = len(ids) + len(parent) + len(shape) + len(more)
        self.spans.append(b"\x12%b%b%b%b%b" % (varint(size), ids, parent, shape, more))


_IDS = Struct("<2s16s2s8sBQBQ").pack


# of a trail


def spans_of(trail: Trail, clock: Clock) -> list[bytes]:
    """All spans of one request, each a field of ScopeSpans."""
    root, trace = trail.root, _Trace(trail, clock)
    assert root is not None
    above = 0 if trail.parent is None else trail.parent.span_id
    trace.add(above, root.span_id, *_of_root(trail, clock))
    last = trail.received_at
    for step in trail.steps:
        last = step.ended_at if step.ended_at > last else last
        if step.name == "attempt":
            _add_attempt(trace, root.span_id, step)
        else:
            shape = _shape(step.name, _INTERNAL, step.tier, step.replica, step.reason)
            trace.add(root.span_id, trace.next_id(), shape, step.began_at, step.ended_at)
    trace.add(root.span_id, trace.next_id(), _shape("settle", _INTERNAL), last, trail.ended_at)
    return trace.spans


def _of_root(trail: Trail, clock: Clock) -> tuple[bytes, float, float, bytes]:
    """Shape, times, and what else there is of the span of the whole request."""
    last = trail.last_attempt
    failure = (trail.reason or trail.outcome) if trail.outcome in _FAILED else ""
    replica = "" if last is None else last.replica
    shape = _root_shape(
        trail.kind, trail.model, trail.outcome, trail.priority, trail.tenant, trail.tier, replica, trail.reason, failure
    )  # fmt: skip
    more = field(9, _key_value("graceway.request_id", trail.request_id))
    if trail.session:
        more += field(9, _key_value("graceway.session", trail.session))
    if last is not None:
        more += _attribute("gen_ai.usage.output_tokens", max(0, last.after_tokens + last.tokens))
    if trail.outcome != "served" or len(trail.steps) > 2:
        more += b"".join(_events(trail, clock))
    return shape, trail.received_at, trail.ended_at, more


def _events(trail: Trail, clock: Clock) -> Iterator[bytes]:
    """What a person looks for in a trace: that quality was given up, that nobody answered, that a stream broke and went on."""
    for step in trail.steps:
        if step.after_tokens:
            yield _event(clock.unix_ns(step.began_at), "resume", "graceway.after_tokens", step.after_tokens)
    if trail.outcome in ("degraded", "shed", "broken"):
        yield _event(clock.unix_ns(trail.ended_at), trail.outcome, "graceway.reason", trail.reason)


def _add_attempt(trace: _Trace, root_id: int, step: Step) -> None:
    """The attempt and, below it, its two parts."""
    span_id = step.span_id or trace.next_id()
    more = _attribute("gen_ai.usage.output_tokens", max(0, step.tokens))
    if step.after_tokens:
        more += _attribute("graceway.after_tokens", step.after_tokens)
    shape = _shape("attempt", _CLIENT, step.tier, step.replica, step.reason, step.reason)
    trace.add(root_id, span_id, shape, step.began_at, step.ended_at, more)
    first_at = step.first_token_at or step.ended_at
    trace.add(span_id, trace.next_id(), _shape("prefill", _INTERNAL), step.began_at, first_at)
    if step.first_token_at:
        trace.add(span_id, trace.next_id(), _shape("decode", _INTERNAL), first_at, step.ended_at)


def batch_of(resource: bytes, spans: Iterable[bytes]) -> bytes:
    """An ExportTraceServiceRequest. `resource` is what all spans have in common, from `resource_of`; `spans` are of
    `spans_of`."""
    scope = field(1, field(1, SCOPE.encode()))
    return field(1, resource + field(2, scope + b"".join(spans)))


def resource_of(attributes: dict[str, str]) -> bytes:
    """The resource's field of ResourceSpans."""
    return field(1, b"".join(field(1, _key_value(key, value)) for key, value in attributes.items()))
