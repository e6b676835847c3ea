"""The gRPC surface: the Open Inference Protocol and Triton's stream, on the same pipeline as HTTP.

A call's own deadline is its caller's deadline, and a call that its client cancels is cancelled down to the replica.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Any, NoReturn, Protocol
from urllib.parse import unquote

import grpc
import grpc.aio
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from gateway.access import may_look
from gateway.callers import Callers
from gateway.errors import (
    BadRequest,
    ClientError,
    GrpcError,
    ModelNotFound,
    TooLarge,
    Unauthorized,
    grpc_error_of,
    grpc_internal,
    grpc_unread,
    whole_seconds,
)
from gateway.grpc_reply import FINAL, Failed, GrpcReply, Outbox, Sink, Whole, disclosed
from gateway.grpc_request import VERSION, parse_infer
from gateway.http_client import clean_header
from gateway.inference_pb import inference_pb2 as pb
from gateway.reply import Reply, Served
from gateway.request import Request, degradation, name_request
from gateway.specs import GatewaySpec
from gateway.tensors import parameter_value, set_parameter

log = logging.getLogger("graceway.grpc")

Json = dict[str, Any]
SERVICE = "inference.GRPCInferenceService"
UNREADABLE = "\0"
"""The model's name in the place of a message that can't be decoded: no model is called so."""
AT_ONCE_ON_A_STREAM = 256
"""Requests of one stream that run at the same time; the next ones wait to be read."""
STRICT = "triton_grpc_error"
"""Metadata by which a client asks that an error end its stream with a status, as Triton has it."""

Pairs = tuple[tuple[str, str | bytes], ...]
Context = grpc.aio.ServicerContext[Any, Any]


class Serves(Protocol):
    """What the surface needs of a gateway."""

    spec: GatewaySpec
    callers: Callers

    @property
    def admin_key(self) -> str | None: ...
    async def answer(self, request: Request, reply: Reply) -> None: ...
    @property
    def is_ready(self) -> bool: ...
    def models(self) -> Json: ...
    def status(self) -> Json: ...


class InferenceService:
    """The methods of `inference.GRPCInferenceService`, by their names there."""

    def __init__(self, gateway: Serves) -> None:
        self._gateway = gateway
        self._listening: set[asyncio.Future[None]] = set()

    async def ServerLive(self, _: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, _: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._gateway.is_ready)

    async def ModelReady(self, asked: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        await let_look(self._gateway, context)
        lowest = degradation(metadata_of(context).get("x-degradation", ""))
        is_ready = asked.version in ("", VERSION) and is_model_ready(self._gateway, asked.name, lowest)
        return pb.ModelReadyResponse(ready=is_ready)

    async def ServerMetadata(
        self, _: pb.ServerMetadataRequest, context: Context
    ) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(
            name="graceway", version=version("graceway"), extensions=["parameters", "binary_tensor_data"]
        )

    async def ModelMetadata(
        self, asked: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        await let_look(self._gateway, context)
        names = [card["id"] for card in self._gateway.models()["data"]]
        if asked.name not in names or asked.version not in ("", VERSION):
            await _abort(context, Failed(grpc_error_of(ModelNotFound(asked.name)), "", ""))
        return pb.ModelMetadataResponse(
            name=asked.name, versions=[VERSION], platform="graceway", inputs=INPUTS, outputs=OUTPUTS
        )

    async def RepositoryIndex(
        self, asked: pb.RepositoryIndexRequest, context: Context
    ) -> pb.RepositoryIndexResponse:
        await let_look(self._gateway, context)
        status = self._gateway.status()["models"]
        index = pb.RepositoryIndexResponse()
        for name in status:
            is_ready = is_model_ready(self._gateway, name)
            if is_ready or not asked.ready:
                state = "READY" if is_ready else "UNAVAILABLE"
                index.models.add(name=name, version=VERSION, state=state)
        return index

    async def ModelInfer(self, message: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        sink = Whole()
        await self._answer(message, context, sink, metadata_of(context), is_stream=False)
        part = sink.part
        if isinstance(part, Failed):
            await _abort(context, part)
        await context.send_initial_metadata(tuple(disclosed(part.served)))
        return part.response

    async def ModelStreamInfer(self, messages: AsyncIterator[pb.ModelInferRequest], context: Context) -> None:
        try:
            async with asyncio.timeout(None) as unread:
                await self._stream(messages, context, Outbox(unread, self._write_timeout_s))
        except TimeoutError:
            # It waits for the client, too, who may leave rather than read it.
            with suppress(grpc.aio.InternalError):
                await _abort(context, Failed(grpc_unread(), "", ""))

    async def _stream(
        self, messages: AsyncIterator[pb.ModelInferRequest], context: Context, outbox: Outbox
    ) -> None:
        reading = asyncio.ensure_future(self._read(messages, context, outbox))
        try:
            await _write(outbox, context)
        finally:
            # Whoever leaves, reads nothing or is told that it broke, takes with it all that runs for the stream.
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _write_timeout_s(self) -> float:
        return self._gateway.spec.limits.write_timeout_s

    async def _read(
        self, messages: AsyncIterator[pb.ModelInferRequest], context: Context, outbox: Outbox
    ) -> None:
        """Answers every message, and closes the outbox behind the last one."""
        running: set[asyncio.Task[None]] = set()
        listening = asyncio.ensure_future(self._listen(messages, context, outbox, running))
        self._listening.add(listening)
        try:
            await asyncio.wait({listening})
            while running:
                await asyncio.wait(running)
        finally:
            self._listening.discard(listening)
            for task in (listening, *running):
                task.cancel()
            await asyncio.gather(listening, *running, return_exceptions=True)
            outbox.close()

    async def _listen(
        self,
        messages: AsyncIterator[pb.ModelInferRequest],
        context: Context,
        outbox: Outbox,
        running: set[asyncio.Task[None]],
    ) -> None:
        metadata, gate, count = metadata_of(context), asyncio.Semaphore(AT_ONCE_ON_A_STREAM), 0

        def settled(task: asyncio.Task[None]) -> None:
            running.discard(task)
            gate.release()

        async for message in messages:
            await gate.acquire()
            if (blocked := outbox.room()) is not None:
                # Who reads no answers is asked for no more questions: answers in one piece, and errors, wait for nothing.
                await blocked
            count += 1
            own = _numbered(metadata, count)
            task = asyncio.ensure_future(self._answer(message, context, outbox, own, is_stream=True))
            running.add(task)
            task.add_done_callback(settled)

    def begin_drain(self) -> None:
        """Streams take no more requests, and end when those that they have are answered."""
        for listening in self._listening:
            listening.cancel()

    async def _answer(
        self,
        message: pb.ModelInferRequest,
        context: Context,
        sink: Sink,
        metadata: Mapping[str, str],
        is_stream: bool,
    ) -> None:
        """Puts the answer, or why there is none."""
        headers = {**metadata, **_own_id(message)}
        request_id = name_request(headers)
        try:
            if message.model_name == UNREADABLE:
                raise BadRequest("the message is no ModelInferRequest")
            if (limit_bytes := self._gateway.spec.max_body_bytes) < message.ByteSize():
                raise TooLarge(limit_bytes)
            asked = parse_infer(message, headers, context.time_remaining(), is_stream)
            request_id = asked.request.request_id
            await self._gateway.answer(asked.request, GrpcReply(asked, sink))
        except ClientError as error:
            sink.put(Failed(grpc_error_of(error), request_id, message.id))
        except Exception:
            log.exception("a request failed in a way that nobody foresaw")
            sink.put(Failed(grpc_internal(), request_id, message.id))


async def let_look(gateway: Serves, context: Context) -> None:
    """Ends the call of somebody who may not see what the gateway shows of itself."""
    authorization = metadata_of(context).get("authorization")
    if not may_look(authorization, peer_host(context), gateway.admin_key, gateway.callers):
        await _abort(context, Failed(grpc_error_of(Unauthorized()), "", ""))


class Decoding(grpc.aio.ServerInterceptor):
    """Has a message that is none refused as the caller's mistake; gRPC would blame the server, and log it."""

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        call = await continuation(details)
        if details.method not in (f"/{SERVICE}/ModelInfer", f"/{SERVICE}/ModelStreamInfer"):
            return call
        return call._replace(request_deserializer=decoded)


def decoded(data: bytes) -> pb.ModelInferRequest:
    try:
        return pb.ModelInferRequest.FromString(data)
    except DecodeError:
        return pb.ModelInferRequest(model_name=UNREADABLE)


def is_model_ready(gateway: Serves, name: str, lowest: str = "allow") -> bool:
    """Whether a tier that the caller accepts can serve, and the gateway is to stay."""
    status = gateway.status()
    tiers = status["models"].get(name, {}).get("tiers", [])
    names = [tier["name"] for tier in tiers]
    accepted = {"allow": len(tiers), "never": 1}.get(lowest)
    if accepted is None:
        accepted = names.index(lowest) + 1 if lowest in names else 0
    return not status["draining"] and any(tier["serving"] for tier in tiers[:accepted])


def metadata_of(context: Context) -> dict[str, str]:
    """What came with the call, by lower-case name; binary values aside."""
    pairs = context.invocation_metadata() or ()
    return {str(name): value for name, value in pairs if isinstance(value, str)}


def peer_host(context: Context) -> str:
    """The address that the call comes from, without its port: of `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    host, _, _ = unquote(context.peer()).partition(":")[2].rpartition(":")
    return host.strip("[]")


def _numbered(metadata: Mapping[str, str], count: int) -> Mapping[str, str]:
    """A stream has one `x-request-id` and many requests: from the second on they carry their number."""
    given = metadata.get("x-request-id")
    return metadata if not given or count == 1 else {**metadata, "x-request-id": f"{given}-{count}"}


def _own_id(message: pb.ModelInferRequest) -> Mapping[str, str]:
    """The name that a request of a stream gives itself, as metadata has it."""
    given = message.parameters.get("x-request-id")
    named = None if given is None else parameter_value(given)
    return {} if named is None else {"x-request-id": str(named)}


async def _write(outbox: Outbox, context: Context) -> None:
    """Sends what is in the outbox. The first answer discloses itself before it, the last one behind it."""
    is_strict = metadata_of(context).get(STRICT, "").lower() == "true"
    has_begun, told = False, None
    while (part := await outbox.get()) is not None:
        if isinstance(part, Failed):
            if is_strict:
                await _abort(context, part)
            response = _error_response(part)
        else:
            if part.served is not told:
                told = part.served
                await _disclose(context, told, has_begun)
            response = pb.ModelStreamInferResponse(infer_response=part.response)
        has_begun = True
        await context.write(response)


async def _disclose(context: Context, served: Served, has_begun: bool) -> None:
    pairs = tuple(disclosed(served))
    if not has_begun:
        await context.send_initial_metadata(pairs)
    context.set_trailing_metadata(pairs)


def _error_response(failed: Failed) -> pb.ModelStreamInferResponse:
    """An error of one request on a stream that goes on for the others.

    Triton's client shows the message alone, so that says what the rest does.
    """
    error = failed.error
    wait = "" if error.retry_after_s is None else f"; try again in {whole_seconds(error.retry_after_s)} s"
    response = pb.ModelStreamInferResponse(error_message=f"[{error.code}] {error.message}{wait}")
    told = response.infer_response
    told.id = failed.id
    set_parameter(told, "error_code", error.code)
    set_parameter(told, FINAL, True)
    for name, value in _error_pairs(failed):
        set_parameter(told, name, value)
    return response


async def _abort(context: Context, failed: Failed) -> NoReturn:
    """Ends the call with a status, its reason and when to come again."""
    error = failed.error
    pairs: Pairs = (
        *_error_pairs(failed),
        ("grpc-status-details-bin", _details(error)),
    )
    await context.abort(grpc.StatusCode[error.code], error.message, pairs)


def _error_pairs(failed: Failed) -> Sequence[tuple[str, str]]:
    error = failed.error
    told = (
        [("x-request-id", clean_header(failed.request_id))]
        if failed.served is None
        else disclosed(failed.served)
    )
    told.append(("x-shed-reason", error.reason))
    if error.retry_after_s is not None:
        told.append(("retry-after", str(whole_seconds(error.retry_after_s))))
    return [(name, value) for name, value in told if value]


def _details(error: GrpcError) -> bytes:
    """google.rpc.Status, in which clients' libraries look for RetryInfo and ErrorInfo."""
    status = Status(code=grpc.StatusCode[error.code].value[0], message=error.message)
    if error.reason:
        status.details.append(_any(ErrorInfo(reason=error.reason.upper(), domain="graceway")))
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromNanoseconds(int(error.retry_after_s * 1e9))
        status.details.append(_any(RetryInfo(retry_delay=delay)))
    return bytes(status.SerializeToString())


def _any(message: ErrorInfo | RetryInfo) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed


def _tensors(*described: tuple[str, str, int]) -> list[pb.ModelMetadataResponse.TensorMetadata]:
    return [
        pb.ModelMetadataResponse.TensorMetadata(name=name, datatype=datatype, shape=[size])
        for name, datatype, size in described
    ]


INPUTS = _tensors(
    ("text_input", "BYTES", -1),
    ("messages", "BYTES", 1),
    ("request", "BYTES", 1),
    ("max_tokens", "INT32", 1),
    ("temperature", "FP32", 1),
    ("top_p", "FP32", 1),
    ("seed", "INT64", 1),
    ("stop", "BYTES", -1),
    ("stream", "BOOL", 1),
)
"""One of the first three is needed; the rest are examples: any field of OpenAI's API may be an input or a parameter."""
OUTPUTS = _tensors(
    ("text_output", "BYTES", -1),
    ("finish_reason", "BYTES", -1),
    ("model", "BYTES", 1),
    ("token_ids", "INT64", -1),
    ("choice", "INT64", -1),
    ("response", "BYTES", 1),
)
