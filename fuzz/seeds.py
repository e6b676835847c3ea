"""Inputs to begin with: one or two that are right, for each target, from which fuzzing departs."""

import orjson

from gateway.inference_pb import inference_pb2 as pb

_CHAT = orjson.dumps(
    {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 8,
     "stop": ["\n"], "n": 1, "temperature": 0, "tools": [], "stream_options": {"include_usage": True}}
)  # fmt: skip
_TEXT = orjson.dumps({"model": "chat", "prompt": ["hi"], "logprobs": 0, "echo": False, "min_tokens": 1})
_HEADERS = b"id-1\nsession\ncritical\n2.5\nallow\n00-ab-cd-01\nBearer sk-1"
_DELTA = (
    b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"content":"%b"},"logprobs":null,"finish_reason":null,"token_ids":[%d]}]}'
)
_STREAM = b"\n".join([_DELTA % (b"one", 5), _DELTA % (b"two", 6), _DELTA % (b"three", 7), b"[DONE]"])
_USAGE = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}'
_WHOLE = b'{"id":"c","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":{}}'
_SIZED = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
_CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"


_ASKED = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
_OFFER = (
    b"POST /v1/completions HTTP/1.1\r\nupgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\n{}"
)
_GET = b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n"
_PIECES = (
    b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n"
    % (len(_TEXT), _TEXT)
)


def _message() -> bytes:
    message = pb.ModelInferRequest(model_name="chat", id="1")
    tensor = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"hi")
    message.inputs.add(name="temperature", datatype="FP32", shape=[1]).contents.fp32_contents.append(0.5)
    message.parameters["max_tokens"].int64_param = 8
    message.parameters["stop"].string_param = '["a"]'
    message.outputs.add(name="text_output")
    return message.SerializeToString()


def _raw_message() -> bytes:
    message = pb.ModelInferRequest(model_name="chat")
    message.inputs.add(name="request", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(len(_CHAT).to_bytes(4, "little") + _CHAT)
    message.parameters["priority"].uint64_param = 2
    return message.SerializeToString()


SEEDS: dict[str, tuple[bytes, ...]] = {
    "http_request": (b"\1\0" + _CHAT + b"\n\n" + _HEADERS, b"\0\0" + _TEXT + b"\n\n" + _HEADERS),
    "http_fields": (b"\3\0" + bytes(range(40)), b"\2\0" + bytes(range(250, 20, -7))),
    "grpc_request": (b"\0\0" + _message(), b"\2\0" + _raw_message()),
    "pin": (b'{"model":"chat","tier":"small","share":0.5,"for_s":60}',),
    "connection": (
        b"\0\0" + _ASKED % (len(_CHAT), _CHAT) + _GET,
        b"\0\0" + (_ASKED % (len(_CHAT), _CHAT)).replace(b"HTTP/1.1", b"HTTP/1.0"),
        b"\0\0" + (_ASKED % (len(_CHAT), _CHAT)).replace(b"host:", b"expect: 100-continue\r\nhost:"),
        b"\1\0" + _PIECES + _GET,
        b"\1\0" + _OFFER + _GET,
    ),
    "events": (b"\1\0data: {}\n\ndata: [DONE]\n\n", b"\2\0: hello\r\nevent: x\r\ndata: a\r\ndata: b\r\n\r\n"),
    "response": (b"\0\0" + _SIZED, b"\1\0" + _CHUNKED, b"\2\0HTTP/1.1 503 No\r\n\r\nbusy"),
    "stream": (b"\3\0" + _STREAM, b"\2\0" + _STREAM, b"\7\0" + _STREAM + b"\n" + _USAGE),
    "stream_fields": (b"\3\0" + bytes(range(11, 60)), b"\7\0" + bytes(range(250, 20, -7))),
    "whole": (_WHOLE,),
}
"""By target. Two bytes in front of most of them choose among variants."""
