"""Answers as the Open Inference Protocol puts them: one response, or one a streamed event.

Outputs are `text_output`, `finish_reason` and `model`, one value a choice, and when asked for `token_ids`, `choice` (which
choice a value belongs to) and `response` (the JSON that an HTTP client gets). What HTTP discloses in headers is in
parameters of the first response, and again when it changes.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol, TypeGuard

import orjson

from gateway.errors import GrpcError, grpc_broken, grpc_rejection, grpc_shed
from gateway.grpc_request import VERSION, Asked
from gateway.http_client import clean_header
from gateway.inference_pb import inference_pb2 as pb
from gateway.policy.decision import Shed
from gateway.reply import Served
from gateway.sse import DONE
from gateway.tensors import add_ints, add_strings, set_parameter

Json = dict[str, Any]
FINAL = "triton_final_response"
_WAITING = 64
"""Responses that may wait for a client before the replica's stream is read no further."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer, or a part of one."""

    served: Served
    response: pb.ModelInferResponse


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer, or no more of it."""

    error: GrpcError
    request_id: str
    id: str
    served: Served | None = None
    """Whose refusal it is, where a replica found the request wrong."""


Part = Spoken | Failed


class Sink(Protocol):
    """Where the parts of answers go."""

    def put(self, part: Part) -> None: ...
    def room(self) -> Awaitable[None] | None:
        """What to await before the next part when the client is slow, else None."""
        ...


class Whole:
    """A sink for one answer in one part."""

    part: Part

    def put(self, part: Part) -> None:
        self.part = part

    def room(self) -> Awaitable[None] | None:
        return None


class GrpcReply:
    """A `Reply` that puts parts into a sink."""

    __slots__ = ("_asked", "_model", "_served", "_sink", "has_failed")

    def __init__(self, asked: Asked, sink: Sink) -> None:
        self._asked, self._sink = asked, sink
        self._served: Served | None = None
        self._model = asked.request.model
        self.has_failed = False

    def push(self, served: Served, frames: bytes) -> Awaitable[None] | None:
        for event in frames.split(b"\n\n"):
            payload = event.removeprefix(b"data: ")
            if payload and payload != DONE:
                self._event(served, payload)
        return self._sink.room()

    def _event(self, served: Served, payload: bytes) -> None:
        event: Json = orjson.loads(payload)
        error = event.get("error")
        if isinstance(error, dict) and "choices" not in event:
            self._fail(grpc_broken(str(error.get("message")), str(error.get("code") or "")))
        else:
            self._speak(served, event, payload)

    async def end(self) -> None:
        if self._asked.wants_empty_final and not self.has_failed:
            assert self._served is not None
            response = pb.ModelInferResponse(model_name=self._model, model_version=VERSION, id=self._asked.id)
            set_parameter(response, FINAL, True)
            self._sink.put(Spoken(self._served, response))

    async def whole(self, served: Served, body: bytes, status: int = 200) -> None:
        if status != 200:
            self._fail(grpc_rejection(status, body), served)
            return
        self._speak(served, orjson.loads(body), body)
        await self.end()

    async def refuse(self, shed: Shed, request_id: str) -> None:
        self._fail(grpc_shed(shed))

    def _fail(self, error: GrpcError, served: Served | None = None) -> None:
        self.has_failed = True
        self._sink.put(Failed(error, self._asked.request.request_id, self._asked.id, served))

    def _speak(self, served: Served, event: Json, payload: bytes) -> None:
        response = response_of(self._asked, event, payload)
        self._model = response.model_name
        if served is not self._served:
            self._served = served
            for name, value in disclosed(served):
                set_parameter(response, name, value)
        if self._asked.wants_empty_final:
            set_parameter(response, FINAL, False)
        self._sink.put(Spoken(served, response))


def response_of(asked: Asked, event: Json, payload: bytes) -> pb.ModelInferResponse:
    """An event of a stream, or a whole answer, in OpenAI's form, as a response."""
    model = str(event.get("model") or asked.request.model)
    response = pb.ModelInferResponse(model_name=model, model_version=VERSION, id=asked.id)
    choices: list[Json] = event.get("choices") or []
    wanted, is_raw = asked.outputs, asked.is_raw
    if choices and "text_output" in wanted:
        add_strings(response, "text_output", [_text(c).encode() for c in choices], is_raw)
    if choices and "finish_reason" in wanted:
        reasons = [str(c.get("finish_reason") or "").encode() for c in choices]
        add_strings(response, "finish_reason", reasons, is_raw)
    if "model" in wanted:
        add_strings(response, "model", [model.encode()], is_raw)
    if choices and "token_ids" in wanted:
        add_ints(
            response, "token_ids", [i for c in choices for i in c.get("token_ids") or () if _fits(i)], is_raw
        )
    if choices and "choice" in wanted:
        add_ints(response, "choice", [_index(c) for c in choices], is_raw)
    if "response" in wanted:
        add_strings(response, "response", [payload], is_raw)
    _add_counts(response, event)
    return response


def _text(choice: Json) -> str:
    """What it says; nothing where that is no text, as in a message of parts, which only `response` holds."""
    part = choice.get("delta", choice.get("message"))
    said = part.get("content") if isinstance(part, dict) else choice.get("text")
    return said if isinstance(said, str) else ""


def _index(choice: Json) -> int:
    index = choice.get("index")
    return index if _fits(index) else 0


def _fits(value: object) -> TypeGuard[int]:
    """Whether it is a number that the protocol's messages can hold."""
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _add_counts(response: pb.ModelInferResponse, event: Json) -> None:
    """Usage where it is told, and the seam where another tier goes on."""
    usage, seam = event.get("usage") or {}, event.get("graceway")
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        if _fits(usage.get(name)):
            set_parameter(response, name, usage[name])
    if isinstance(seam, dict) and _fits(after := seam.get("after_tokens")):
        set_parameter(response, "spliced_after_tokens", after)


def disclosed(served: Served) -> list[tuple[str, str]]:
    """What every answer says about itself, as metadata and as parameters have it: in ASCII."""
    told = [
        ("x-served-tier", served.tier),
        ("x-served-replica", served.replica or "gateway"),
        ("x-request-id", served.request_id),
        ("x-degraded", served.degraded),
        ("x-given-up", served.given_up),
        ("x-kv-durability", served.kv_durability),
        ("traceparent", served.traceparent),
        ("age", "" if served.age_s is None else str(int(served.age_s))),
        *served.turn.told(),
    ]
    return [(name, clean_header(value)) for name, value in told if value]


class Outbox:
    """What is to go out on one stream, from all the requests that came in on it.

    Args:
        unread: expires when the client has left a full outbox unread for `patience_s`; not at all by default.
    """

    def __init__(
        self, unread: asyncio.Timeout | None = None, patience_s: Callable[[], float] = lambda: inf
    ) -> None:
        self._unread, self._patience_s = unread, patience_s
        self._parts: deque[Part] = deque()
        self._has_parts, self._has_room = asyncio.Event(), asyncio.Event()
        self._is_closed = False

    def put(self, part: Part) -> None:
        self._parts.append(part)
        self._has_parts.set()

    def room(self) -> Awaitable[None] | None:
        if len(self._parts) < _WAITING:
            return None
        self._has_room.clear()
        if self._unread is not None and self._unread.when() is None:
            self._unread.reschedule(asyncio.get_running_loop().time() + self._patience_s())
        return self._until_room()

    async def _until_room(self) -> None:
        await self._has_room.wait()

    def close(self) -> None:
        """Nothing more comes."""
        self._is_closed = True
        self._has_parts.set()

    async def get(self) -> Part | None:
        """The next part; None after the last one."""
        while not self._parts:
            if self._is_closed:
                return None
            self._has_parts.clear()
            await self._has_parts.wait()
        part = self._parts.popleft()
        if len(self._parts) < _WAITING // 2:
            self._has_room.set()
            if self._unread is not None and self._unread.when() is not None:
                self._unread.reschedule(None)
        return part
