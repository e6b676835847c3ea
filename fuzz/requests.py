"""A client's request: its JSON and headers, and all that is read from it before an answer begins."""

from collections.abc import Callable
from contextlib import suppress

import orjson

from fallback_models.answer import Asked
from fallback_models.cache import is_deterministic, key_of
from fuzz.grammar import fields
from fuzz.pieces import seeded
from gateway.coverage import covered
from gateway.errors import ClientError
from gateway.grpc_api import decoded
from gateway.grpc_request import parse_infer
from gateway.http_client import Origin, request_bytes
from gateway.journal import Journal
from gateway.legs import CannotContinue, Target, first_leg, next_leg
from gateway.pin import read_pin
from gateway.policy.prefix import prefix_chain
from gateway.request import Kind, Request, parse_request, rendered
from gateway.specs import GivesUp

REPLICA = Origin.of("http://127.0.0.1:1")
HEADER_NAMES = (
    "x-request-id", "x-session-id", "x-priority", "x-request-timeout-seconds", "x-degradation", "traceparent",
    "authorization",
)  # fmt: skip
FIELDS = (
    *(
        "model",
        "messages",
        "prompt",
        "stream",
        "stream_options",
        "include_usage",
        "max_tokens",
        "max_completion_tokens",
    ),
    *(
        "min_tokens",
        "n",
        "best_of",
        "stop",
        "logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "response_format",
    ),
    *(
        "temperature",
        "echo",
        "suffix",
        "role",
        "content",
        "continue_final_message",
        "return_token_ids",
        "prompt_embeds",
    ),
    *(
        "truncate_prompt_tokens",
        "include_stop_str_in_output",
        "prompt_logprobs",
        "functions",
        "seed",
        "user",
        "type",
    ),
)
_GIVES_UP = GivesUp(max_tokens=4, n=1, logprobs=True)


def http_request(data: bytes) -> None:
    """A body, behind the lines of its headers."""
    seed, rest = seeded(data)
    body, _, lines = rest.partition(b"\n\n")
    values = [line.decode("latin-1") for line in lines.split(b"\n")]
    kind: Kind = "chat" if seed & 1 else "text"
    with suppress(ClientError):
        use(parse_request(kind, body, dict(zip(HEADER_NAMES, values, strict=False))))


def http_fields(data: bytes) -> None:
    """A body that is JSON, with the fields of OpenAI's API and any values."""
    seed, rest = seeded(data)
    kind: Kind = "chat" if seed & 1 else "text"
    start: dict[str, object] = {"model": "chat", "messages": [{}], "prompt": ""} if seed & 2 else {}
    try:
        body = orjson.dumps(start | fields(rest, FIELDS))
    except orjson.JSONEncodeError:
        return
    with suppress(ClientError):
        use(parse_request(kind, body, {}))


def grpc_request(data: bytes) -> None:
    """A gRPC message, as bytes."""
    seed, rest = seeded(data)
    metadata = {"x-request-timeout-seconds": "5"} if seed & 1 else {}
    with suppress(ClientError):
        use(parse_infer(decoded(rest), metadata, None, is_stream=bool(seed & 2)).request)


def pin(data: bytes) -> None:
    """What an operator asks of a ladder."""
    with suppress(ValueError):
        read_pin(data)


def use(request: Request) -> None:
    """All that the pipeline reads of a request, and what goes to the replica: one whole HTTP request."""
    prefix_chain(rendered(request))
    covered(request, _GIVES_UP)
    if is_deterministic(request.body):
        key_of(Asked(request.model, request.kind, request.body))
    leg = first_leg(request, Target("primary", "m"))
    headers = {"x-request-id": request.request_id, "traceparent": request.traceparent}
    head, _, _ = request_bytes(REPLICA, leg.path, leg.encoded(), headers).partition(b"\r\n\r\n")
    if len(head.split(b"\r\n")) != 6 or b"\r" in head.replace(b"\r\n", b"") or not head.isascii():
        raise AssertionError(f"the head of a request to a replica is not the one that was built: {head!r}")
    _continue(request, lambda journal: journal.text.append("so far"))
    _continue(request, _with_ids)


def _with_ids(journal: Journal) -> None:
    journal.prompt_ids, journal.ids, journal.safe_ids = [1, 2], [3], 1
    journal.text.append("so far")


def _continue(request: Request, begin: Callable[[Journal], None]) -> None:
    journal = Journal(request)
    begin(journal)
    with suppress(CannotContinue):
        next_leg(journal, Target("primary", "m", max_model_len=64), "primary", "").encoded()
