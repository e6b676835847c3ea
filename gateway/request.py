"""A client's request, parsed and checked: what the pipeline works on, whichever protocol it came by."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from os import urandom
from time import perf_counter
from typing import Any, Literal, get_args

import orjson

from gateway.errors import BadRequest
from gateway.http_client import clean_header
from gateway.policy.facts import Priority

Kind = Literal["chat", "text", "embedding"]
PATHS: dict[Kind, str] = {
    "chat": "/v1/chat/completions",
    "text": "/v1/completions",
    "embedding": "/v1/embeddings",
}
PROMPTS: dict[Kind, str] = {"chat": "messages", "text": "prompt", "embedding": "input"}
"""The field that holds what the model is to read."""

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.0{1,15})?", re.ASCII)
_EXACT = 2.0**53
"""Below it every whole number is a float of its own."""
_DEEP = 200
"""Brackets below which no body is nested too deeply to be written: orjson writes 254 levels, and reads 1024."""

COUNTS = frozenset({"max_tokens", "max_completion_tokens", "min_tokens", "n", "best_of"})
"""Fields that hold a whole number, which some clients write as 20.0 or "20", and servers take for 20."""
INEXACT_WHEN_SET = (
    "tools", "functions", "response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
    "structured_outputs", "structural_tag", "grammar", "json_schema", "regex", "ebnf", "bad_words",
    "logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids", "n_probs", "top_n_tokens",
    "use_beam_search", "echo", "suffix", "presence_penalty", "frequency_penalty", "repetition_detection",
    "thinking_token_budget", "n_predict", "max_new_tokens", "min_new_tokens",
)  # fmt: skip
_INEXACT = frozenset({"n", "best_of", *INEXACT_WHEN_SET})
"""Fields under which a continuation could differ from an undisturbed run: their state begins anew with the new prompt."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the client asked for. `body` is its JSON, untouched; it is copied before anything in it changes."""

    kind: Kind
    body: dict[str, Any]
    model: str
    request_id: str
    size_bytes: int
    stream: bool = False
    session: str = ""
    priority: Priority = "standard"
    timeout_s: float | None = None
    degradation: str = "allow"
    traceparent: str = ""
    inexact_because: str = ""
    """Why its answer can't be continued exactly in mid-stream; empty when it can."""
    credential: str = field(default="", repr=False)
    """The bearer token that the caller sent."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """As they came, by lower-case name."""
    lacks: str = ""
    """What the gateway would have put into it and had not: `feature.profile=default`."""
    tenant: str = ""
    weight: float = 1.0
    """Of the tenant's share where requests wait."""
    lowest_tier: str = ""
    """The lowest tier that the caller's key allows; empty for all."""
    received_at: float = 0.0
    """When its last byte was in, in `perf_counter` seconds."""

    @property
    def wants_usage(self) -> bool:
        options = self.body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    @property
    def wants_token_ids(self) -> bool:
        return self.body.get("return_token_ids") is True

    @property
    def max_tokens(self) -> int | None:
        """How long the answer may be; None where the request does not say, or is endless."""
        limit = self._named_limit
        return limit if isinstance(limit, int) and limit >= 0 else None

    @property
    def is_endless(self) -> bool:
        """Whether it asks for as much as the window holds, as llama.cpp's clients do by -1."""
        limit = self._named_limit
        return isinstance(limit, int) and limit < 0

    @property
    def leaves_its_length_open(self) -> bool:
        """Whether it is a text completion that says nothing of its length: its server's default ends it."""
        return self.kind == "text" and self.max_tokens is None and not self.is_endless

    @property
    def _named_limit(self) -> Any:
        limit = self.body.get("max_completion_tokens")
        return self.body.get("max_tokens") if limit is None else limit

    @property
    def stops(self) -> tuple[str, ...]:
        stop = self.body.get("stop") or ()
        if isinstance(stop, str):
            return (stop,)
        return tuple(s for s in stop if isinstance(s, str) and s) if isinstance(stop, list) else ()


def inexactness(body: Mapping[str, Any]) -> str:
    """Why an answer to this body can't be continued exactly in mid-stream; empty when it can."""
    for name in _INEXACT.intersection(body):
        value = body[name]
        if name in ("n", "best_of"):
            is_set = value not in (None, 1)
        elif name == "logprobs":
            # 0 asks a text completion for those of the sampled tokens.
            is_set = value is not None and value is not False
        elif name == "tools":
            is_set = bool(value) and body.get("tool_choice") != "none"
        else:
            is_set = value not in (None, False, 0, "", [], {"type": "text"})
        if is_set:
            return name
    prompt = body.get("prompt")
    return "several prompts" if isinstance(prompt, list) and not is_one_prompt(prompt) else ""


def is_one_prompt(prompt: list[Any]) -> bool:
    """Whether a list is a single prompt: token ids, or one string."""
    return all(isinstance(t, int) for t in prompt) or (len(prompt) == 1 and isinstance(prompt[0], str))


def parse_request(kind: Kind, raw: bytes, headers: Mapping[str, str]) -> Request:
    """Reads a request's body and headers (lower-case names).

    Raises:
        BadRequest: the client's mistake, with the field in `param`.
    """
    received_at = perf_counter()
    body = _json_object(raw)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise BadRequest("you must name a model: a string in `model`", param="model")
    stream = body.get("stream")
    if stream not in (None, True, False):
        raise BadRequest("`stream` must be true or false", param="stream")
    _check_prompt(kind, body)
    _read_counts(body)
    return Request(
        kind=kind,
        body=body,
        model=model,
        request_id=clean_header(headers.get("x-request-id", "")) or urandom(16).hex(),
        size_bytes=len(raw),
        stream=bool(stream),
        session=_session(headers.get("x-session-id", "").strip()),
        priority=_priority(headers.get("x-priority")),
        timeout_s=timeout_s(headers.get("x-request-timeout-seconds")),
        degradation=degradation(headers.get("x-degradation", "")),
        traceparent=clean_header(headers.get("traceparent", "")),
        inexact_because="embeddings" if kind == "embedding" else inexactness(body),
        credential=bearer(headers.get("authorization", "")),
        headers=headers,
        received_at=received_at,
    )


def name_request(headers: dict[str, str]) -> str:
    """The request's id; one that its client did not name is named here, so that a refusal tells it, too."""
    request_id = clean_header(headers.get("x-request-id", "")) or urandom(16).hex()
    headers["x-request-id"] = request_id
    return request_id


def _session(value: str) -> str:
    """A session's id as stores and headers take it. One that they don't take stays another one than all others."""
    return value if value == clean_header(value) else sha256(value.encode()).hexdigest()


def degradation(value: str) -> str:
    """`allow`, `never` or a tier's name, which has no capitals."""
    return value.strip().lower() or "allow"


def bearer(authorization: str) -> str:
    """The token of an Authorization header; empty when it is of another kind."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _json_object(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    if raw.count(b"[") + raw.count(b"{") > _DEEP:
        _check_depth(body)
    return body


def _check_depth(body: dict[str, Any]) -> None:
    """Reading takes deeper nesting than writing, and what goes to a replica is written anew."""
    try:
        orjson.dumps([[[body]]])
    except orjson.JSONEncodeError as error:
        raise BadRequest("the body is nested too deeply") from error


def _check_prompt(kind: Kind, body: dict[str, Any]) -> None:
    if kind == "chat":
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
            raise BadRequest("`messages` must be a list of at least one message", param="messages")
    elif kind == "embedding":
        if not body.get("input") or not isinstance(body["input"], str | list):
            raise BadRequest("`input` must be a string or a list that is not empty", param="input")
        if body.get("stream"):
            raise BadRequest("embeddings come in one piece", param="stream")
    elif not isinstance(body.get("prompt"), str | list) and "prompt_embeds" not in body:
        raise BadRequest("`prompt` must be a string or a list", param="prompt")


def _read_counts(body: dict[str, Any]) -> None:
    """Has whole numbers that are written in another way read alike by everybody, here and at the replica."""
    for name in COUNTS.intersection(body):
        value = body[name]
        if isinstance(value, float) and abs(value) < _EXACT and value.is_integer():
            body[name] = int(value)
        elif isinstance(value, str) and _WHOLE_NUMBER.fullmatch(value):
            body[name] = int(value.partition(".")[0])


def _priority(value: str | None) -> Priority:
    if value is None:
        return "standard"
    for known in get_args(Priority):
        if value.strip().lower() == known:
            return known  # type: ignore[no-any-return]
    raise BadRequest("x-priority must be critical, standard or sheddable", param="x-priority")


def timeout_s(value: str | None) -> float | None:
    """The seconds that a timeout's header says.

    Raises:
        BadRequest: it says none.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e6:
        name = "x-request-timeout-seconds"
        raise BadRequest(f"{name} must be a number of seconds above 0 and below 1000000", param=name)
    return seconds


def rendered(request: Request) -> bytes:
    """The prompt as bytes that begin alike for two conversations that do."""
    prompt = request.body.get(PROMPTS[request.kind])
    return prompt.encode() if isinstance(prompt, str) else orjson.dumps(prompt).rstrip(b"]}")
