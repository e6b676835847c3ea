"""The W3C header by which a trace goes on from one service to the next."""

import re
from typing import NamedTuple

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(NamedTuple):
    """A span that may have children elsewhere. Ids are numbers, of 128 and of 64 bits."""

    trace_id: int
    span_id: int
    is_sampled: bool

    def header(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.is_sampled else '00'}"


def read_traceparent(header: str) -> TraceContext | None:
    """The context that a caller sent; None where there is none, or none that the standard allows."""
    found = _TRACEPARENT.fullmatch(header.strip()) if header else None
    if found is None:
        return None
    version, trace, span, flags, rest = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == "ff" or (version == "00" and rest) or not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1))
