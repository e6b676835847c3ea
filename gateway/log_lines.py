"""Log records and finished requests as lines, in JSON or in words. Nothing here says what was asked or answered, or by
which key.
"""

import logging
import time
import traceback
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.trail import Trail

Json = dict[str, Any]
REQUESTS = "graceway.requests"
_WORDS = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
_MONOTONIC_TO_UNIX_S = time.time() - time.perf_counter()
FIELDS = ("event", "model", "tier", "replica")
"""Attributes of a record that become fields of its line."""


def json_line(record: logging.LogRecord) -> bytes:
    """A record in JSON."""
    fields = {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
    line = {
        **_head(record.created, record.levelname.lower(), record.name),
        "message": record.getMessage(),
        **fields,
    }
    if record.exc_info and record.exc_info[0] is not None:
        line["exception"] = "".join(traceback.format_exception(*record.exc_info))
    return orjson.dumps(line, default=str) + b"\n"


def text_line(record: logging.LogRecord) -> bytes:
    """A record in words."""
    return _WORDS.format(record).encode("utf-8", "replace") + b"\n"


def request_json(trail: Trail) -> bytes:
    """A finished request in JSON."""
    at = trail.ended_at + _MONOTONIC_TO_UNIX_S
    return (
        orjson.dumps({**_head(at, "info", REQUESTS), "message": "request", **request_fields(trail)}) + b"\n"
    )


def request_text(trail: Trail) -> bytes:
    """A finished request in words."""
    record = logging.LogRecord(REQUESTS, logging.INFO, "", 0, _said(request_fields(trail)), None, None)
    record.created = trail.ended_at + _MONOTONIC_TO_UNIX_S
    return text_line(record)


def _said(fields: Json) -> str:
    return " ".join(f"{name}={value}" for name, value in fields.items())


def _head(at: float, level: str, logger: str) -> Json:
    return {
        "time": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
        "level": level,
        "logger": logger,
    }


def request_fields(trail: Trail) -> Json:
    """What there is to say of a request; what is empty is left out."""
    attempts, last = trail.attempts, trail.last_attempt
    fields: Json = {
        "trace": trail.trace_id,
        "request": trail.request_id,
        "session": trail.session,
        "tenant": trail.tenant,
        "kind": trail.kind,
        "stream": trail.is_stream or None,
        "model": trail.model,
        "priority": trail.priority,
        "outcome": trail.outcome,
        "reason": trail.reason,
        "tier": trail.tier,
        "replica": last.replica if last is not None else "",
        "attempts": len(attempts) or None,
        "resumed": any(a.after_tokens for a in attempts) or None,
        "tokens": last.after_tokens + last.tokens if last is not None else None,
        "ttft_s": round(trail.ttft_s, 4) or None,
        "queue_s": round(sum(s.ended_at - s.began_at for s in trail.steps if s.name == "queue"), 4) or None,
        "duration_s": round(trail.ended_at - trail.received_at, 4),
    }
    return {name: value for name, value in fields.items() if value not in ("", None)}
