"""What a gRPC message asks for: tensors and parameters as OpenAI's fields, metadata as headers, and what is refused."""

import json
import math
import struct
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import BadRequest, ClientError, ModelNotFound
from gateway.grpc_request import Asked, parse_infer
from gateway.inference_pb import inference_pb2 as pb

FIELDS = {
    "BYTES": "bytes_contents", "BOOL": "bool_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
PROMPT: dict[str, tuple[str, list[Any]]] = {"text_input": ("BYTES", [b"Say hi."])}
MESSAGES = [{"role": "user", "content": "Say hi."}]


def message(tensors: dict[str, tuple[str, list[Any]]], **parameters: Any) -> pb.ModelInferRequest:
    found = pb.ModelInferRequest(model_name="chat", id="7")
    for name, (datatype, values) in tensors.items():
        tensor = found.inputs.add(name=name, datatype=datatype, shape=[len(values)])
        getattr(tensor.contents, FIELDS[datatype]).extend(values)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[
            type(value)
        ]
        setattr(found.parameters[name], kind, value)
    return found


def parse(found: pb.ModelInferRequest, remaining_s: float | None = None, **metadata: str) -> Asked:
    headers = {name.replace("_", "-"): value for name, value in metadata.items()}
    return parse_infer(found, headers, remaining_s, is_stream=True)


PROMPTS: dict[str, tuple[dict[str, tuple[str, list[Any]]], str, dict[str, Any]]] = {
    "a text": (PROMPT, "text", {"prompt": "Say hi."}),
    "several texts": ({"text_input": ("BYTES", [b"a", b"b"])}, "text", {"prompt": ["a", "b"]}),
    "a chat": (
        {"messages": ("BYTES", [json.dumps(MESSAGES).encode()])},
        "chat",
        {"messages": MESSAGES},
    ),
    "a whole chat": (
        {"request": ("BYTES", [json.dumps({"messages": MESSAGES, "seed": 3}).encode()])},
        "chat",
        {"messages": MESSAGES, "seed": 3},
    ),
    "a whole completion": (
        {"request": ("BYTES", [b'{"prompt": "x", "model": "chat"}'])},
        "text",
        {"prompt": "x"},
    ),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_the_prompt(case: str) -> None:
    tensors, kind, fields = PROMPTS[case]
    request = parse(message(tensors)).request
    assert (request.kind, request.model, request.stream) == (kind, "chat", True)
    assert request.body == {"model": "chat", "stream": True, **fields}


TENSORS: dict[str, tuple[tuple[str, list[Any]], Any]] = {
    "max_tokens": (("INT32", [12]), 12),
    "seed": (("INT64", [1 << 40]), 1 << 40),
    "top_k": (("UINT64", [5]), 5),
    "temperature": (("FP32", [0.1]), 0.1),
    "top_p": (("FP64", [0.123456789012]), 0.123456789012),
    "ignore_eos": (("BOOL", [True]), True),
    "stop": (("BYTES", [b"\n"]), ["\n"]),
    "stop_token_ids": (("INT32", [4]), [4]),
    "user": (("BYTES", [b"me"]), "me"),
    "weights": (("FP32", [1.5, 2.5]), [1.5, 2.5]),
    "response_format": (("BYTES", [b'{"type": "text"}']), {"type": "text"}),
    "tool_choice": (("BYTES", [b"auto"]), "auto"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_other_inputs_are_fields(name: str) -> None:
    tensor, value = TENSORS[name]
    assert parse(message({**PROMPT, name: tensor})).request.body[name] == value


def test_parameters_are_fields() -> None:
    body = parse(message(PROMPT, max_tokens=3, temperature=0.5, echo=False, stop="[")).request.body
    assert (body["max_tokens"], body["temperature"], body["echo"], body["stop"]) == (3, 0.5, False, "[")


def test_sampling_parameters_as_tritons_vllm_backend_takes_them() -> None:
    tensors = {
        **PROMPT,
        "sampling_parameters": ("BYTES", [b'{"max_tokens": 4, "stop": ["x"]}']),
        "exclude_input_in_output": ("BOOL", [True]),
        "stream": ("BOOL", [False]),
    }
    request = parse(message(tensors)).request
    assert request.body == {
        "model": "chat",
        "prompt": "Say hi.",
        "max_tokens": 4,
        "stop": ["x"],
        "stream": False,
    }


def test_metadata_is_read_as_headers_are() -> None:
    request = parse(
        message(PROMPT), x_request_id="r", x_session_id="s", x_priority="critical", x_degradation="never"
    ).request
    assert (request.request_id, request.session, request.priority) == ("r", "s", "critical")
    assert (request.degradation, request.timeout_s) == ("never", None)


def test_a_parameter_says_it_for_one_request() -> None:
    found = message(PROMPT, **{"x-session-id": "own", "x-priority": "sheddable"})
    request = parse(found, x_session_id="s", x_priority="critical").request
    assert (request.session, request.priority) == ("own", "sheddable")
    assert "x-session-id" not in request.body


@pytest.mark.parametrize(
    ("rank", "priority"), [(0, "standard"), (1, "critical"), (2, "standard"), (3, "sheddable")]
)
def test_tritons_priority_and_sequence(rank: int, priority: str) -> None:
    found = message(PROMPT, sequence_id=42, sequence_start=True)
    found.parameters["priority"].uint64_param = rank
    request = parse(found).request
    assert (request.session, request.priority) == ("42", priority)
    assert request.body.keys() == {"model", "prompt", "stream"}


DEADLINES: list[tuple[float | None, dict[str, str], int, float | None]] = [
    (None, {}, 0, None),
    (3.0, {}, 0, 3.0),
    (3.0, {"x_request_timeout_seconds": "2"}, 0, 2.0),
    (3.0, {"x_request_timeout_seconds": "5"}, 0, 3.0),
    (None, {}, 1_500_000, 1.5),
    (1.0, {}, 1_500_000, 1.0),
    (-0.5, {}, 0, 1e-6),
    (1e9, {}, 0, None),
]


@pytest.mark.parametrize(("remaining_s", "metadata", "timeout_us", "expected_s"), DEADLINES)
def test_the_shortest_deadline_holds(
    remaining_s: float | None, metadata: dict[str, str], timeout_us: int, expected_s: float | None
) -> None:
    found = message(PROMPT, timeout=timeout_us) if timeout_us else message(PROMPT)
    assert parse(found, remaining_s, **metadata).request.timeout_s == expected_s


def wanting(*outputs: str) -> pb.ModelInferRequest:
    found = message(PROMPT)
    for name in outputs:
        found.outputs.add(name=name)
    return found


def test_outputs() -> None:
    plain = {"text_output", "finish_reason", "model"}
    assert parse(message(PROMPT)).outputs == plain
    assert parse(message(PROMPT, return_token_ids=True)).outputs == plain | {"token_ids"}
    assert parse(message(PROMPT, n=2)).outputs == plain | {"choice"}
    assert parse(message({"text_input": ("BYTES", [b"a", b"b"])})).outputs == plain | {"choice"}
    assert parse(message({"request": ("BYTES", [b'{"prompt": "x"}'])})).outputs == plain | {"response"}
    asked = parse(wanting("token_ids"))
    assert (asked.outputs, asked.request.wants_token_ids) == ({"token_ids"}, True)


WRONG: dict[str, tuple[pb.ModelInferRequest, str]] = {
    "no prompt": (message({}), "must hold the prompt"),
    "two prompts": (message({**PROMPT, "messages": ("BYTES", [b"[]"])}), "must hold the prompt"),
    "an empty prompt tensor": (message({"text_input": ("BYTES", [])}), "with one value"),
    "a prompt of numbers": (message({"text_input": ("INT32", [1])}), "must be of BYTES"),
    "two lists of messages": (message({"messages": ("BYTES", [b"[]", b"[]"])}), "one value"),
    "messages that are not JSON": (message({"messages": ("BYTES", [b"hi"])}), "not JSON"),
    "messages that are none": (message({"messages": ("BYTES", [b"[1]"])}), "at least one message"),
    "a request that is a list": (message({"request": ("BYTES", [b"[]"])}), "JSON object"),
    "another model inside": (
        message({"request": ("BYTES", [b'{"prompt": "x", "model": "m"}'])}),
        "model_name",
    ),
    "bytes that are no text": (message({"text_input": ("BYTES", [b"\xff"])}), "not UTF-8"),
    "a number that is none": (message({**PROMPT, "top_p": ("FP32", [math.nan])}), "no finite number"),
    "a parameter that is no number": (message(PROMPT, top_p=math.inf), "no finite number"),
    "JSON too deep to pass on": (message(PROMPT, metadata="[" * 500 + "]" * 500), "can't be written"),
    "broken JSON in a field": (message(PROMPT, tools="[{"), "not JSON"),
    "sampling parameters that are none": (
        message({**PROMPT, "sampling_parameters": ("BYTES", [b"3"])}),
        "one JSON object",
    ),
    "the prompt in the answer": (
        message({**PROMPT, "exclude_input_in_output": ("BOOL", [False])}),
        "never part",
    ),
    "a stream that is neither": (message(PROMPT, stream="yes"), "true or false"),
    "an output that is none": (wanting("logits"), "no output `logits`"),
    "a timeout that is none": (
        message(PROMPT, **{"x-request-timeout-seconds": "soon"}),
        "number of seconds above 0",
    ),
    "a timeout below zero": (
        message(PROMPT, **{"x-request-timeout-seconds": "-1"}),
        "number of seconds above 0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_refused(case: str) -> None:
    found, text = WRONG[case]
    with pytest.raises(BadRequest, match=text):
        parse(found)


@pytest.mark.parametrize("timeout", ["nan", "inf", "1e7", "0", "-1", "", "soon"])
def test_a_timeout_that_is_none_is_refused_however_short_the_calls_own_is(timeout: str) -> None:
    with pytest.raises(BadRequest, match="number of seconds above 0"):
        parse(message(PROMPT), 5.0, x_request_timeout_seconds=timeout)


def test_an_answer_in_one_piece_is_not_streamed() -> None:
    assert not parse_infer(message(PROMPT), {}, None, is_stream=False).request.stream
    with pytest.raises(BadRequest, match="takes ModelStreamInfer"):
        parse_infer(message(PROMPT, stream=True), {}, None, is_stream=False)


def test_models_have_one_version() -> None:
    found = message(PROMPT)
    found.model_version = "1"
    assert parse(found).request.model == "chat"
    found.model_version = "2"
    with pytest.raises(ModelNotFound):
        parse(found)


def raw(tensors: dict[str, tuple[str, int, bytes]]) -> pb.ModelInferRequest:
    found = pb.ModelInferRequest(model_name="chat")
    for name, (datatype, size, content) in tensors.items():
        found.inputs.add(name=name, datatype=datatype, shape=[size])
        found.raw_input_contents.append(content)
    return found


def packed(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(v)) + v for v in values)


RAW = ("BYTES", 1, packed(b"Say hi."))


def test_raw_tensors() -> None:
    asked = parse(
        raw(
            {
                "text_input": RAW,
                "max_tokens": ("INT32", 1, struct.pack("<i", 9)),
                "seed": ("UINT8", 1, b"\x07"),
                "temperature": ("FP16", 1, struct.pack("<e", 0.5)),
                "ignore_eos": ("BOOL", 1, b"\x01"),
                "stop": ("BYTES", 2, packed(b"", "é".encode())),
            }
        )
    )
    assert asked.is_raw
    body = asked.request.body
    assert (body["prompt"], body["max_tokens"], body["seed"], body["temperature"]) == ("Say hi.", 9, 7, 0.5)
    assert (body["ignore_eos"], body["stop"]) == (True, ["", "é"])


RAW_WRONG: dict[str, tuple[dict[str, tuple[str, int, bytes]], str]] = {
    "a string cut short": ({"text_input": ("BYTES", 1, packed(b"Say hi.")[:-1])}, "end inside a string"),
    "a length cut short": ({"text_input": ("BYTES", 1, b"\x01\x00")}, "end inside a string"),
    "a length beyond all": ({"text_input": ("BYTES", 1, b"\xff\xff\xff\xffa")}, "end inside a string"),
    "fewer values than its shape": ({"text_input": ("BYTES", 2, packed(b"a"))}, "not its shape's"),
    "a shape below zero": ({"text_input": ("BYTES", -1, packed(b"a"))}, "not its shape's"),
    "half a number": ({"text_input": RAW, "seed": ("INT32", 1, b"\x01")}, "are no INT32"),
    "a type that is none": ({"text_input": RAW, "seed": ("INT3", 1, b"\x01")}, "can't be read"),
}


@pytest.mark.parametrize("case", RAW_WRONG)
def test_raw_tensors_that_are_refused(case: str) -> None:
    tensors, text = RAW_WRONG[case]
    with pytest.raises(BadRequest, match=text):
        parse(raw(tensors))


def test_raw_contents_for_each_input() -> None:
    found = raw({"text_input": RAW})
    found.raw_input_contents.append(b"")
    with pytest.raises(BadRequest, match="1 inputs, but 2 raw contents"):
        parse(found)


DATATYPES = st.sampled_from(["BYTES", "BOOL", "INT8", "INT32", "UINT64", "FP16", "FP32", "FP64", "FP8", ""])
NAMES = st.sampled_from(
    ["text_input", "messages", "request", "sampling_parameters", "stream", "stop", "n", "é"]
)
CONTENTS = st.one_of(
    st.binary(max_size=24),
    st.builds(packed, st.binary(max_size=12)),
    st.sampled_from(
        [packed(b'[{"role": "user"}]'), packed(b'{"prompt": []}'), packed(b"null"), packed(b"1e999")]
    ),
)
PARAMETERS = st.builds(
    pb.InferParameter,
    int64_param=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
)


@given(
    tensors=st.lists(st.tuples(NAMES, DATATYPES, st.integers(-2, 3), CONTENTS), max_size=4),
    parameters=st.dictionaries(
        NAMES | st.sampled_from(["timeout", "priority", "x-priority"]), PARAMETERS, max_size=3
    ),
    is_stream=st.booleans(),
)
@example(tensors=[("text_input", "BYTES", 1, packed(b"x"))], parameters={}, is_stream=False)
def test_whatever_comes_is_read_or_refused(
    tensors: list[tuple[str, str, int, bytes]], parameters: dict[str, pb.InferParameter], is_stream: bool
) -> None:
    found = pb.ModelInferRequest(model_name="chat")
    for name, datatype, size, content in tensors:
        found.inputs.add(name=name, datatype=datatype, shape=[size])
        found.raw_input_contents.append(content)
    for name, value in parameters.items():
        found.parameters[name].CopyFrom(value)
    with suppress(ClientError):
        parse_infer(found, {}, 1.0, is_stream)


@given(st.binary(max_size=200))
def test_any_message_is_read_or_refused(data: bytes) -> None:
    try:
        found = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return
    with suppress(ClientError):
        parse_infer(found, {}, None, is_stream=True)


def test_no_input_is_there_twice() -> None:
    found = raw({"text_input": RAW})
    found.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    found.raw_input_contents.append(packed(b"x"))
    with pytest.raises(BadRequest, match="twice"):
        parse(found)
