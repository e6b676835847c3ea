"""Spans in OTLP's protobuf encoding, made of trails.

Written by hand, and checked in the tests against opentelemetry-proto: a span of its classes costs twenty times as much,
one of the SDK more yet. What spans of one kind have in common is made once; ids and times, whose size never varies, are
written around it as machine words.
"""

from functools import lru_cache
from struct import pack
from typing import Final

from librt.strings import BytesWriter, write_i16_le, write_i64_le

from gateway.trace_context import TraceContext
from gateway.trail import Outcome, Step, Trail

_SERVER: Final = 2
_CLIENT: Final = 3
_INTERNAL: Final = 1
_ERROR: Final = 2
_FAILED: Final[frozenset[Outcome]] = frozenset({"shed", "broken", "failed"})
_LONGEST: Final = 256
"""Of an attribute's text, in characters."""
_TOKENS: Final = "gen_ai.usage.output_tokens"
_AFTER_TOKENS: Final = "graceway.after_tokens"
_REQUEST_ID: Final = "graceway.request_id"
SCOPE = "graceway"
_OPERATIONS = {"chat": "chat", "text": "text_completion", "embedding": "embeddings"}
"""OpenTelemetry's names."""


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
    return field(11, b"\x09" + pack("<q", at_ns) + field(2, name.encode()) + field(3, _key_value(key, value)))


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


_PREFILL: Final = _shape("prefill", _INTERNAL)
_DECODE: Final = _shape("decode", _INTERNAL)
_SETTLE: Final = _shape("settle", _INTERNAL)
_KEYS_AND_WORDS_BYTES: Final = 46
"""Of a span: the trace's id, its own, and its times, with their keys."""
_PARENT_BYTES: Final = 10
_REGISTER: Final = 0x0FFFFFFFFFFFFFFF
"""All numbers up to it fit into a register of a compiled module."""


class _Spans:
    """Writes the spans of one request, one behind the other.

    Args:
        offset_ns: of unix time to that of `perf_counter`.
    """

    __slots__ = ("_last_id", "_offset_ns", "_out", "_root_id", "_trace")

    def __init__(self, out: BytesWriter, root: TraceContext, offset_ns: int) -> None:
        self._out = out
        self._offset_ns, self._trace = offset_ns, bytes.fromhex(root.trace_id)
        self._root_id, self._last_id = _id(root.span_id), root.span_id & _REGISTER

    def add(
        self, parent: bytes, span_id: bytes, began_at: float, ended_at: float, shape: bytes, more: bytes = b""
    ) -> None:
        """One span. `parent` is empty where nobody is above it; `more` is what it says that others of its shape may not."""
        began_ns = int(began_at * 1e9) + self._offset_ns
        ended_ns = int(ended_at * 1e9) + self._offset_ns if ended_at > began_at else began_ns
        out, size_bytes = self._out, _KEYS_AND_WORDS_BYTES + len(shape) + len(more)
        out.append(0x12)
        _write_size(out, size_bytes + _PARENT_BYTES if parent else size_bytes)
        # Keys of two bytes: the field's, and how many bytes come.
        write_i16_le(out, 0x100A)
        out.write(self._trace)
        write_i16_le(out, 0x0812)
        out.write(span_id)
        if parent:
            write_i16_le(out, 0x0822)
            out.write(parent)
        out.append(0x39)
        write_i64_le(out, began_ns)
        out.append(0x41)
        write_i64_le(out, ended_ns)
        out.write(shape)
        out.write(more)

    def _next_id(self) -> bytes:
        """For a span that nobody else refers to: near the root's, which is random."""
        self._last_id += 1
        return _id(self._last_id)

    def add_step(self, step: Step) -> None:
        shape = _shape(step.name, _INTERNAL, step.tier, step.replica, step.reason)
        self.add(self._root_id, self._next_id(), step.began_at, step.ended_at, shape)

    def add_settle(self, began_at: float, ended_at: float) -> None:
        self.add(self._root_id, self._next_id(), began_at, ended_at, _SETTLE)

    def add_attempt(self, step: Step) -> None:
        """The attempt and, below it, its two parts, as far as they say more: before the first token they are one, and an
        answer of one token ends with it.
        """
        span_id = _id(step.span_id) if step.span_id else self._next_id()
        shape = _shape("attempt", _CLIENT, step.tier, step.replica, step.reason, step.reason)
        more = _attribute(_TOKENS, max(0, step.tokens))
        if step.after_tokens:
            more += _attribute(_AFTER_TOKENS, step.after_tokens)
        self.add(self._root_id, span_id, step.began_at, step.ended_at, shape, more)
        if step.first_token_at > 0.0 and (step.tokens > 1 or step.reason != ""):
            self.add(span_id, self._next_id(), step.began_at, step.first_token_at, _PREFILL)
            self.add(span_id, self._next_id(), step.first_token_at, step.ended_at, _DECODE)


def _id(span_id: int) -> bytes:
    return span_id.to_bytes(8, "big")


def _write_size(out: BytesWriter, size_bytes: int) -> None:
    """As a varint."""
    while size_bytes >= 0x80:
        out.append(size_bytes & 0x7F | 0x80)
        size_bytes >>= 7
    out.append(size_bytes)


# of a trail


def spans_of(trails: list[Trail], offset_ns: int) -> bytes:
    """All spans of some requests, each a field of ScopeSpans.

    Args:
        offset_ns: of unix time to that of `perf_counter`.
    """
    out = BytesWriter()
    for trail in trails:
        _write(out, trail, offset_ns)
    return out.getvalue()


def _write(out: BytesWriter, trail: Trail, offset_ns: int) -> None:
    root, answer = trail.root, trail.last_attempt
    assert root is not None, "only what is sampled is delivered"
    failure = (trail.reason or trail.outcome) if trail.outcome in _FAILED else ""
    shape = _root_shape(
        trail.kind, trail.model, trail.outcome, trail.priority, trail.tenant, trail.tier,
        "" if answer is None else answer.replica, trail.reason, failure,
    )  # fmt: skip
    spans = _Spans(out, root, offset_ns)
    parent = b"" if trail.parent is None else _id(trail.parent.span_id)
    spans.add(
        parent, _id(root.span_id), trail.received_at, trail.ended_at, shape, _more(trail, answer, offset_ns)
    )
    last = trail.received_at
    for step in trail.steps:
        last = step.ended_at if step.ended_at > last else last
        if step.name == "attempt":
            spans.add_attempt(step)
        else:
            spans.add_step(step)
    spans.add_settle(last, trail.ended_at)


def _more(trail: Trail, answer: Step | None, offset_ns: int) -> bytes:
    """What the span of the whole request says that others that went the same way may not."""
    more = _text(_REQUEST_ID, trail.request_id)
    if trail.session:
        more += _text("graceway.session", trail.session)
    if answer is not None:
        more += _attribute(_TOKENS, max(0, answer.after_tokens + answer.tokens))
    if trail.outcome != "served" or len(trail.steps) > 2:
        more += _events(trail, offset_ns)
    return more


def _text(key: str, text: str) -> bytes:
    """An attribute that hardly ever comes again."""
    data = text[:_LONGEST].encode("utf-8", "replace")
    return _before(key, len(data)) + data


@lru_cache(maxsize=4096)
def _before(key: str, size: int) -> bytes:
    """Everything of an attribute of so many bytes but those."""
    told = b"\x0a" + varint(size)
    named = field(1, key.encode()) + b"\x12" + varint(len(told) + size) + told
    return b"\x4a" + varint(len(named) + size) + named


def _events(trail: Trail, offset_ns: int) -> bytes:
    """What a person looks for in a trace: that quality was given up, that nobody answered, that a stream broke and went on."""
    events = b""
    for step in trail.steps:
        if step.after_tokens:
            events += _event(int(step.began_at * 1e9) + offset_ns, "resume", _AFTER_TOKENS, step.after_tokens)
    if trail.outcome in ("degraded", "shed", "broken"):
        ended_ns = int(trail.ended_at * 1e9) + offset_ns
        events += _event(ended_ns, trail.outcome, "graceway.reason", trail.reason)
    return events


def batch_of(resource: bytes, spans: list[bytes]) -> bytes:
    """An ExportTraceServiceRequest.

    Args:
        resource: what all spans have in common, from `resource_of`.
        spans: from `spans_of`.
    """
    size = len(_SCOPE) + sum(map(len, spans))
    scoped = b"\x12" + varint(size) + _SCOPE
    # In one piece: each copy of a batch costs as much as sending it.
    head = b"\x0a" + varint(len(resource) + len(scoped) - len(_SCOPE) + size) + resource + scoped
    return b"".join([head, *spans])


_SCOPE = field(1, field(1, SCOPE.encode()))


def resource_of(attributes: dict[str, str]) -> bytes:
    """The resource's field of ResourceSpans."""
    return field(1, b"".join(field(1, _key_value(key, value)) for key, value in attributes.items()))
