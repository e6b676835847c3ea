"""A client's gRPC message as the request that the pipeline works on: tensors and parameters are OpenAI's fields.

The prompt is one of three inputs: `text_input` (a text completion), `messages` (a chat: JSON), or `request` (a whole body
of OpenAI's API: JSON). Every other input or parameter is the field of its name. What HTTP clients put into headers comes
as metadata, or, for one request of a stream, as a parameter of that name.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import BadRequest, ModelNotFound
from gateway.inference_pb import inference_pb2 as pb
from gateway.request import Kind, Request, is_one_prompt, parse_request, timeout_s
from gateway.tensors import Scalar, parameter_value, read_tensors

Json = dict[str, Any]
VERSION = "1"
"""Of every model: the protocol has versions, Graceway has tiers."""
PROMPTS = ("text_input", "messages", "request")
OUTPUTS = ("text_output", "finish_reason", "model", "token_ids", "choice", "response")
HEADERS = (
    "x-session-id", "x-priority", "x-degradation", "x-request-id", "x-request-timeout-seconds", "traceparent",
)  # fmt: skip
"""That a parameter may give, too."""
EMPTY_FINAL = "triton_enable_empty_final_response"
_TRITONS = frozenset({"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", EMPTY_FINAL})
_STRUCTURED = frozenset(
    {"tools", "tool_choice", "functions", "response_format", "logit_bias", "stream_options", "structured_outputs",
     "guided_json", "guided_choice", "chat_template_kwargs", "metadata"}
)  # fmt: skip
"""Fields that a string gives as JSON, as no tensor can hold them."""
_LISTS = frozenset({"stop", "stop_token_ids", "bad_words", "allowed_token_ids"})
_LONGEST_S = 1e6


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, and how its answer is to be put."""

    request: Request
    id: str
    """The client's own, which every response to it carries."""
    is_raw: bool
    """Whether the answer's tensors go as raw bytes, as the request's did."""
    outputs: frozenset[str]
    wants_empty_final: bool


def parse_infer(
    message: pb.ModelInferRequest, metadata: Mapping[str, str], remaining_s: float | None, is_stream: bool
) -> Asked:
    """Reads a message; `remaining_s` is what is left of the call's deadline, if it has one.

    Raises:
        BadRequest, ModelNotFound
    """
    if message.model_version not in ("", VERSION):
        raise ModelNotFound(f"{message.model_name}/{message.model_version}")
    tensors = read_tensors(message)
    parameters = {name: parameter_value(p) for name, p in message.parameters.items()}
    kind, body = _body(tensors)
    body.update(_fields(tensors, parameters))
    if body.setdefault("model", message.model_name) != message.model_name:
        raise BadRequest("`model` in the request is not the message's model_name", "model")
    if body.setdefault("stream", is_stream) and not is_stream:
        raise BadRequest("an answer in pieces takes ModelStreamInfer", "stream")
    outputs = _outputs(message, tensors, body)
    headers = _headers(metadata, parameters, remaining_s)
    return Asked(
        request=parse_request(kind, _encoded(body), headers),
        id=message.id,
        is_raw=bool(message.raw_input_contents),
        outputs=outputs,
        wants_empty_final=bool(parameters.get(EMPTY_FINAL)),
    )


def _encoded(body: Json) -> bytes:
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        # Reading takes deeper nesting than writing.
        raise BadRequest(f"the request can't be written as JSON: {error}") from error


def _body(tensors: Mapping[str, list[Scalar]]) -> tuple[Kind, Json]:
    """What kind of completion it is, and the body of one with only the prompt, or all that `request` says."""
    given = [name for name in PROMPTS if name in tensors]
    if len(given) != 1:
        raise BadRequest(f"one of the inputs {', '.join(PROMPTS)} must hold the prompt", "inputs")
    (name,) = given
    values = tensors[name]
    if not values or not all(isinstance(value, str) for value in values):
        raise BadRequest(f"the input `{name}` must be of BYTES, with one value", name)
    if name == "text_input":
        return "text", {"prompt": values[0] if len(values) == 1 else values}
    if len(values) != 1:
        raise BadRequest(f"the input `{name}` must have one value", name)
    told = _json(name, str(values[0]))
    if name == "messages":
        return "chat", {"messages": told}
    if not isinstance(told, dict):
        raise BadRequest("the input `request` must be a JSON object", name)
    return ("chat" if "messages" in told else "text"), told


def _fields(tensors: Mapping[str, list[Scalar]], parameters: Mapping[str, Scalar | None]) -> Json:
    fields: Json = {}
    for name, values in tensors.items():
        if name == "sampling_parameters":
            fields.update(_sampling(values))
        elif name == "exclude_input_in_output":
            if values != [True]:
                raise BadRequest("the prompt is never part of `text_output`", name)
        elif name not in PROMPTS:
            is_list = len(values) != 1 or name in _LISTS
            fields[name] = [_plain(name, v) for v in values] if is_list else _plain(name, values[0])
    for name, value in parameters.items():
        if name not in HEADERS and name not in _TRITONS and value is not None:
            fields[name] = _plain(name, value)
    return fields


def _sampling(values: list[Scalar]) -> Json:
    told = _json("sampling_parameters", str(values[0])) if len(values) == 1 else None
    if not isinstance(told, dict):
        raise BadRequest("the input `sampling_parameters` must be one JSON object", "sampling_parameters")
    return told


def _plain(name: str, value: Scalar) -> Any:
    """A value as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadRequest(f"`{name}` is no finite number", name)
    if isinstance(value, str) and name in _STRUCTURED and value[:1] in ("{", "["):
        return _json(name, value)
    return value


def _json(name: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"`{name}` is not JSON: {error}", name) from error


def _outputs(
    message: pb.ModelInferRequest, tensors: Mapping[str, list[Scalar]], body: Json
) -> frozenset[str]:
    """The outputs that the answer has. Asking for token ids by output is asking for them by field."""
    wanted = {output.name for output in message.outputs}
    if unknown := wanted.difference(OUTPUTS):
        raise BadRequest(f"there is no output `{min(unknown)}`: choose of {', '.join(OUTPUTS)}", min(unknown))
    if "token_ids" in wanted:
        body["return_token_ids"] = True
    if not wanted:
        wanted = {"text_output", "finish_reason", "model"}
        wanted |= {"token_ids"} if body.get("return_token_ids") is True else set()
        wanted |= {"response"} if "request" in tensors else set()
    prompt = body.get("prompt")
    if body.get("n") not in (None, 1) or (isinstance(prompt, list) and not is_one_prompt(prompt)):
        wanted.add("choice")
    return frozenset(wanted)


def _headers(
    metadata: Mapping[str, str], parameters: Mapping[str, Scalar | None], remaining_s: float | None
) -> dict[str, str]:
    headers = dict(metadata)
    given = ((name, parameters.get(name)) for name in HEADERS)
    headers.update((name, _as_header(value)) for name, value in given if value is not None)
    sequence, rank = parameters.get("sequence_id"), parameters.get("priority")
    if sequence:
        headers.setdefault("x-session-id", _as_header(sequence))
    if isinstance(rank, int) and rank > 0:
        headers.setdefault("x-priority", {1: "critical", 2: "standard"}.get(rank, "sheddable"))
    named_s = timeout_s(headers.get("x-request-timeout-seconds"))
    limits = [*([] if named_s is None else [named_s]), *_limits(parameters, remaining_s)]
    if limits and min(limits) < _LONGEST_S:
        headers["x-request-timeout-seconds"] = repr(min(limits))
    return headers


def _as_header(value: Scalar) -> str:
    """As HTTP has it, which reads a header's bytes as Latin-1: a session is the same one by whichever way it comes."""
    return str(value).encode().decode("latin-1")


def _limits(parameters: Mapping[str, Scalar | None], remaining_s: float | None) -> list[float]:
    """In seconds: Triton's `timeout`, which counts microseconds, and the call's own deadline."""
    timeout_us = parameters.get("timeout")
    limits = [timeout_us / 1e6] if isinstance(timeout_us, int | float) and timeout_us > 0 else []
    # A deadline that has just passed is a deadline all the same, not a wrong one.
    return limits if remaining_s is None else [*limits, max(remaining_s, 1e-6)]
