"""Spans in OTLP's protobuf encoding, made of trails.

Written by hand, and checked in the tests against opentelemetry-proto: a span of its classes costs twenty times as much,
one of the SDK more yet, and the thread that makes them holds the interpreter meanwhile. What requests that went the
same way have in common is made once, and all spans of one are packed around it in one go.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from struct import Struct, pack
from time import perf_counter_ns, time_ns

from gateway.trace_context import TraceContext
from gateway.trail import Outcome, Step, Trail

_SERVER, _CLIENT, _INTERNAL = 2, 3, 1
_ERROR = 2
_FAILED: frozenset[Outcome] = frozenset({"shed", "broken", "failed"})
_LONGEST = 256
"""Of an attribute's text, in characters."""
_TOKENS, _AFTER_TOKENS = "gen_ai.usage.output_tokens", "graceway.after_tokens"
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


_Way = tuple[str, str, str, str, int, bool]
"""What a step shares with others: name, tier, replica, reason, size of what more it says, and whether there are spans of its
prefill and decode."""
_RootWay = tuple[str, str, str, str, str, str, str, str, str, int, int]
"""What a request shares with others: the arguments of `_root_shape`, and the sizes of where it belongs and what more it says."""
_Common = tuple[int, bytes, int]
"""Of one span: the size of where it belongs, the fields that it shares, and the size of what more it says."""
_KEYS_AND_TIMES_BYTES = 20
_BELOW_BYTES = 36
"""A trace's id, and the fields of the parent and of the span's own id."""
_REGISTER = 0x0FFFFFFFFFFFFFFF
"""All numbers up to it fit into a register of a compiled module."""


class _Layout:
    """The spans of requests that went the same way: all but ids, times, and what more some of them say."""

    __slots__ = ("_constant", "_pack")

    def __init__(self, spans: Iterable[_Common]) -> None:
        constant: list[bytes] = []
        sizes: list[str] = []
        behind = b""
        for belongs_bytes, fields, more_bytes in spans:
            size = varint(_KEYS_AND_TIMES_BYTES + belongs_bytes + len(fields) + more_bytes)
            constant += (behind + b"\x12" + size + b"\x0a\x10", b"\x39", b"\x41")
            sizes += (f"{belongs_bytes}s", "Q", "Q")
            behind = fields
            if more_bytes:
                constant.append(behind)
                sizes.append(f"{more_bytes}s")
                behind = b""
        fills = [f"{len(part)}s{size}" for part, size in zip(constant, sizes, strict=True)]
        self._constant: list[object] = [*constant, behind]
        self._pack = Struct(f"<{''.join(fills)}{len(behind)}s").pack

    def filled(self, varying: list[object]) -> bytes:
        """`varying` has, of each span, where it belongs, when it began and ended, and what more it says, if anything; before
        each of them, and at the end, there is a place for what is constant.
        """
        varying[::2] = self._constant
        return self._pack(*varying)


@lru_cache(maxsize=1024)
def _layout(root: _RootWay, *steps: _Way) -> _Layout:
    spans: list[_Common] = [(root[9], _root_shape(*root[:9]), root[10])]
    for step in steps:
        spans += _common(*step)
    return _Layout(spans)


def _common(
    name: str, tier: str, replica: str, reason: str, more_bytes: int, has_parts: bool
) -> Iterator[_Common]:
    """Of an attempt, a reason is why it failed."""
    kind, failure = (_CLIENT, reason) if name == "attempt" else (_INTERNAL, "")
    yield _BELOW_BYTES, _shape(name, kind, tier, replica, reason, failure), more_bytes
    if has_parts:
        yield _BELOW_BYTES, _shape("prefill", _INTERNAL), 0
        yield _BELOW_BYTES, _shape("decode", _INTERNAL), 0


class _Trace:
    """Gathers what tells the spans of one request from those of others that went the same way."""

    __slots__ = ("_below_root", "_last_id", "_offset_ns", "_trace", "varying", "ways")

    def __init__(self, root: TraceContext, offset_ns: int) -> None:
        self._offset_ns, self._trace = offset_ns, bytes.fromhex(root.trace_id)
        self._last_id = root.span_id & _REGISTER
        self._below_root = self.below(root.span_id)
        self.varying: list[object] = []
        self.ways: list[_Way] = []

    def below(self, parent: int) -> bytes:
        """The trace and the parent of a span, and the key of its own id; 0 where nobody is above it."""
        if not parent:
            return self._trace + b"\x12\x08"
        return b"%b\x22\x08%b\x12\x08" % (self._trace, parent.to_bytes(8, "big"))

    def _next_id(self) -> int:
        """For a span that nobody else refers to: near the root's, which is random."""
        self._last_id += 1
        return self._last_id

    def add(self, above: bytes, span_id: int, began_at: float, ended_at: float) -> None:
        """`above` is from `below`."""
        began_ns = int(began_at * 1e9) + self._offset_ns
        ended_ns = int(ended_at * 1e9) + self._offset_ns if ended_at > began_at else began_ns
        self.varying += (None, above + span_id.to_bytes(8, "big"), None, began_ns, None, ended_ns)

    def add_step(self, step: Step) -> None:
        self.ways.append((step.name, step.tier, step.replica, step.reason, 0, False))
        self.add(self._below_root, self._next_id(), step.began_at, step.ended_at)

    def add_attempt(self, step: Step) -> None:
        """The attempt and, below it, its two parts, as far as they say more: before the first token they are one, and an
        answer of one token ends with it.
        """
        has_parts = step.first_token_at > 0.0 and (step.tokens > 1 or step.reason != "")
        more = _attribute(_TOKENS, max(0, step.tokens))
        if step.after_tokens:
            more += _attribute(_AFTER_TOKENS, step.after_tokens)
        self.ways.append(("attempt", step.tier, step.replica, step.reason, len(more), has_parts))
        span_id = step.span_id or self._next_id()
        self.add(self._below_root, span_id, step.began_at, step.ended_at)
        self.varying += (None, more)
        if has_parts:
            above = self.below(span_id)
            self.add(above, self._next_id(), step.began_at, step.first_token_at)
            self.add(above, self._next_id(), step.first_token_at, step.ended_at)


# of a trail


def spans_of(trail: Trail, clock: Clock) -> bytes:
    """All spans of one request, each a field of ScopeSpans."""
    root, answer = trail.root, trail.last_attempt
    assert root is not None, "only what is sampled is delivered"
    trace = _Trace(root, clock.offset_ns)
    above = trace.below(0 if trail.parent is None else trail.parent.span_id)
    more = _more(trail, answer, clock)
    trace.add(above, root.span_id, trail.received_at, trail.ended_at)
    trace.varying += (None, more)
    last = trail.received_at
    for step in trail.steps:
        last = step.ended_at if step.ended_at > last else last
        if step.name == "attempt":
            trace.add_attempt(step)
        else:
            trace.add_step(step)
    trace.add_step(Step("settle", last, trail.ended_at))
    failure = (trail.reason or trail.outcome) if trail.outcome in _FAILED else ""
    way: _RootWay = (
        trail.kind, trail.model, trail.outcome, trail.priority, trail.tenant, trail.tier,
        "" if answer is None else answer.replica, trail.reason, failure, len(above) + 8, len(more),
    )  # fmt: skip
    trace.varying.append(None)
    return _layout(way, *trace.ways).filled(trace.varying)


def _more(trail: Trail, answer: Step | None, clock: Clock) -> bytes:
    """What the span of the whole request says that others that went the same way may not."""
    more = _text("graceway.request_id", trail.request_id)
    if trail.session:
        more += _text("graceway.session", trail.session)
    if answer is not None:
        more += _attribute(_TOKENS, max(0, answer.after_tokens + answer.tokens))
    if trail.outcome != "served" or len(trail.steps) > 2:
        more += b"".join(_events(trail, clock))
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


def _events(trail: Trail, clock: Clock) -> Iterator[bytes]:
    """What a person looks for in a trace: that quality was given up, that nobody answered, that a stream broke and went on."""
    for step in trail.steps:
        if step.after_tokens:
            yield _event(clock.unix_ns(step.began_at), "resume", _AFTER_TOKENS, step.after_tokens)
    if trail.outcome in ("degraded", "shed", "broken"):
        yield _event(clock.unix_ns(trail.ended_at), trail.outcome, "graceway.reason", trail.reason)


def batch_of(resource: bytes, spans: list[bytes]) -> bytes:
    """An ExportTraceServiceRequest.

    Args:
        resource: what all spans have in common, from `resource_of`.
        spans: of each request, from `spans_of`.
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
