"""The W3C header by which a trace goes on from one service to the next."""

import re
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span that may have children elsewhere. Ids are lower-case hex."""

    trace_id: str
    span_id: str
    is_sampled: bool

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def read_traceparent(header: str) -> TraceContext | None:
    """The context that a caller sent; None where there is none, or none that the standard allows."""
    found = _TRACEPARENT.fullmatch(header.strip()) if header else None
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1))
