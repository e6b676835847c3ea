"""A blocking gRPC client for greenlets: one streamed chat over the Open Inference Protocol, read as its events come.

The question goes in whole as the input `request`, and each response's output `response` is the event that an HTTP client
gets, so that both are read and judged alike. gRPC's own threads read the socket: tokens are timed when Locust reads them.
"""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import grpc
from grpc.experimental import gevent

from gateway.inference_pb import inference_pb2 as pb
from gateway.inference_pb.inference_pb2_grpc import GRPCInferenceServiceStub
from loadtests.client import KEPT_HEADERS, EventReader, Question, Record

_STATUS = {
    grpc.StatusCode.OK: 200,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}
"""HTTP's word for the same."""
_STRICT = ("triton_grpc_error", "true")
"""An error ends the stream with its status, rather than being one message of it."""


def ask_grpc(
    address: str, model: str, question: Question, due_at: float | None = None, timeout_s: float = 60.0
) -> Record:
    """One streamed chat at `host:port`, due when it was sent if at no other time. Never raises for what the server does.

    Times are of `time.monotonic`.
    """
    begun_at = time.monotonic()
    record = Record(begun_at if due_at is None else due_at, question, started_at=begun_at)
    metadata = (*question.headers.items(), _STRICT)
    call = _stub(address).ModelStreamInfer(
        iter([_request(model, question)]), timeout=timeout_s, metadata=metadata
    )
    try:
        _read(call, EventReader(record, call.cancel).receive)
        record.is_done, record.status = record.error_event is None, 200
    except grpc.RpcError as error:
        _note_end(record, error)
    record.ended_at = time.monotonic()
    told = dict(call.initial_metadata()) | dict(call.trailing_metadata() or ())
    record.headers = {name: told[name] for name in KEPT_HEADERS if name in told}
    return record


def _read(call: Any, receive: Callable[[bytes, float], None]) -> None:
    for message in call:
        now = time.monotonic()
        for output in message.infer_response.outputs:
            if output.name == "response":
                receive(b"data: " + output.contents.bytes_contents[0] + b"\n\n", now)


def _note_end(record: Record, error: grpc.RpcError) -> None:
    """What ended a stream early, in the words of `Record`: a status, or why there is none."""
    code = error.code()
    if code is grpc.StatusCode.CANCELLED:
        record.failure = "left"
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
        record.failure = "timeout"
    elif record.token_times:
        record.status, record.error_event = 200, str(error.details())
    elif code is grpc.StatusCode.UNAVAILABLE and not _is_shed(error):
        # gRPC's own word, not the gateway's: nobody listens there.
        record.failure = "refused"
    else:
        record.status = _STATUS.get(code, 500)


def _is_shed(error: grpc.RpcError) -> bool:
    return any(pair.key == "x-shed-reason" for pair in error.trailing_metadata() or ())


def _request(model: str, question: Question) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="request", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(question.body(model))
    request.outputs.add(name="response")
    return request


@cache
def _stub(address: str) -> GRPCInferenceServiceStub:
    """One channel for a process, opened by the first who asks: Locust forks its workers before that."""
    gevent.init_gevent()
    return GRPCInferenceServiceStub(grpc.insecure_channel(address))
