"""How answers are put into the protocol's messages, and how they wait for a client that reads slowly."""

import asyncio
from typing import Any

import orjson
import pytest

from gateway.errors import GrpcError, grpc_broken, grpc_rejection, grpc_shed
from gateway.grpc_reply import Failed, GrpcReply, Outbox, Part, Spoken
from gateway.grpc_request import Asked
from gateway.policy.decision import Shed
from gateway.reply import Served
from gateway.sse import DONE_FRAME, frame
from tests.gateway.grpc_rig import listed, parameters
from tests.gateway.requests import text

A, B = Served("primary", "a", "", "r"), Served("primary", "b", "", "r")
PLAIN = frozenset({"text_output", "finish_reason", "model"})


def asked(*outputs: str, is_raw: bool = False, final: bool = False) -> Asked:
    return Asked(text(), "7", is_raw, PLAIN | set(outputs), final)


def event(said: str, **more: Any) -> bytes:
    return frame(orjson.dumps({"model": "m", "choices": [{"index": 0, "text": said, **more}]}))


class Kept:
    """A sink that keeps all."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def put(self, part: Part) -> None:
        self.parts.append(part)

    def room(self) -> None:
        return None


def reply_to(question: Asked) -> tuple[GrpcReply, list[Part]]:
    kept = Kept()
    return GrpcReply(question, kept), kept.parts


def responses(parts: list[Part]) -> list[Any]:
    return [part.response for part in parts if isinstance(part, Spoken)]


async def test_each_event_is_a_response() -> None:
    reply, parts = reply_to(asked("token_ids"))
    reply.push(A, event("a", token_ids=[1]) + event("b", token_ids=[2, 3]))
    reply.push(A, event("", finish_reason="stop") + DONE_FRAME)
    await reply.end()
    found = responses(parts)
    assert [listed(r, "text_output") for r in found] == [[b"a"], [b"b"], [b""]]
    assert [listed(r, "finish_reason") for r in found] == [[b""], [b""], [b"stop"]]
    assert [listed(r, "token_ids") for r in found] == [[1], [2, 3], []]
    assert {(r.id, r.model_name, r.model_version) for r in found} == {("7", "m", "1")}


async def test_what_served_is_told_first_and_when_it_changes() -> None:
    reply, parts = reply_to(asked())
    for served in (A, A, B, B):
        reply.push(served, event("x"))
    told = [parameters(r).get("x-served-replica") for r in responses(parts)]
    assert told == ["a", None, "b", None]


async def test_another_tiers_words_are_marked() -> None:
    reply, parts = reply_to(asked())
    seam = {"spliced": True, "after_tokens": 9}
    reply.push(A, frame(orjson.dumps({"model": "s", "choices": [{"text": "x"}], "graceway": seam})))
    assert parameters(responses(parts)[0])["spliced_after_tokens"] == 9


async def test_raw_outputs() -> None:
    reply, parts = reply_to(asked("token_ids", is_raw=True))
    reply.push(A, event("é", token_ids=[5]))
    (found,) = responses(parts)
    assert [o.name for o in found.outputs] == ["text_output", "finish_reason", "model", "token_ids"]
    assert list(found.raw_output_contents) == [
        b"\x02\0\0\0\xc3\xa9",
        b"\0\0\0\0",
        b"\x01\0\0\0m",
        b"\x05\0\0\0\0\0\0\0",
    ]


async def test_a_break_is_the_last_word() -> None:
    question = asked(final=True)
    reply, parts = reply_to(question)
    reply.push(A, event("a"))
    reply.push(A, frame(b'{"error": {"message": "the stream broke: x", "code": "no_replica"}}'))
    await reply.end()
    request_id = question.request.request_id
    assert parts[1:] == [
        Failed(GrpcError("UNAVAILABLE", "the stream broke: x", "no_replica"), request_id, "7")
    ]


async def test_a_chat_without_text() -> None:
    reply, parts = reply_to(asked("response"))
    body = orjson.dumps(
        {"model": "m", "choices": [{"message": {"content": None}, "finish_reason": "tool_calls"}]}
    )
    await reply.whole(A, body)
    (found,) = responses(parts)
    assert listed(found, "text_output") == [b""]
    assert listed(found, "response") == [body]


STRANGE: dict[str, Any] = {
    "a message of parts": {"message": {"content": [{"type": "text", "text": "hi"}]}},
    "a message that is none": {"message": "hi"},
    "a text that is none": {"text": 3},
    "an index that is none": {"message": {"content": ""}, "index": "first"},
}


@pytest.mark.parametrize("case", STRANGE)
async def test_what_can_not_be_put_is_in_the_response_alone(case: str) -> None:
    reply, parts = reply_to(asked("response", "choice", "token_ids"))
    usage, seam = {"total_tokens": 2**63}, {"after_tokens": "nine"}
    choice = {"token_ids": [2**63], **STRANGE[case]}
    body = orjson.dumps({"model": "m", "choices": [choice], "usage": usage, "graceway": seam})
    await reply.whole(A, body)
    (found,) = responses(parts)
    assert (listed(found, "text_output"), listed(found, "choice")) == ([b""], [0])
    assert listed(found, "token_ids") == []
    assert not {"total_tokens", "spliced_after_tokens"} & parameters(found).keys()
    assert listed(found, "response") == [body]


ERRORS: dict[str, tuple[GrpcError, GrpcError]] = {
    "contended": (
        grpc_shed(Shed("queue_full", 2.5, "full")),
        GrpcError("RESOURCE_EXHAUSTED", "full", "queue_full", 2.5),
    ),
    "would be late": (
        grpc_shed(Shed("deadline", 1.0, "late")),
        GrpcError("RESOURCE_EXHAUSTED", "late", "deadline", 1.0),
    ),
    "is late": (grpc_shed(Shed("deadline", None)), GrpcError("DEADLINE_EXCEEDED", "deadline", "deadline")),
    "nothing there": (
        grpc_shed(Shed("no_replica", 1.0)),
        GrpcError("UNAVAILABLE", "no_replica", "no_replica", 1.0),
    ),
    "broken": (grpc_broken("it broke", "no_replica"), GrpcError("UNAVAILABLE", "it broke", "no_replica")),
    "broken by time": (
        grpc_broken("it broke", "deadline"),
        GrpcError("DEADLINE_EXCEEDED", "it broke", "deadline"),
    ),
    "a replica's 400": (
        grpc_rejection(400, b'{"error": {"message": "too long"}}'),
        GrpcError("INVALID_ARGUMENT", "too long"),
    ),
    "an old vLLM's 400": (
        grpc_rejection(400, b'{"object": "error", "message": "too long"}'),
        GrpcError("INVALID_ARGUMENT", "too long"),
    ),
    "a replica's own page": (
        grpc_rejection(422, b"<html>\xff"),
        GrpcError("INVALID_ARGUMENT", "<html>\ufffd"),
    ),
    "a list": (grpc_rejection(400, b"[]"), GrpcError("INVALID_ARGUMENT", "[]")),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_have_their_codes(case: str) -> None:
    found, expected = ERRORS[case]
    assert found == expected


async def test_a_slow_client_holds_up_the_replica_and_loses_nothing() -> None:
    outbox, part = Outbox(), Failed(GrpcError("INTERNAL", ""), "", "")
    count = 0
    while (blocked := outbox.room()) is None:
        outbox.put(part)
        count += 1
        assert count < 1000
    waiting = asyncio.ensure_future(blocked)
    await asyncio.sleep(0)
    assert not waiting.done()
    for _ in range(count):
        assert await outbox.get() is part
    await asyncio.wait_for(waiting, 1.0)
    outbox.put(part)
    outbox.close()
    assert await outbox.get() is part
    assert await outbox.get() is None


async def test_many_events_in_one_read_wait_once() -> None:
    outbox = Outbox()
    reply = GrpcReply(asked(), outbox)
    blocked = reply.push(A, event("x") * 200)
    assert blocked is not None
    waiting = asyncio.ensure_future(blocked)
    for _ in range(200):
        await outbox.get()
    await asyncio.wait_for(waiting, 1.0)


async def test_who_waits_for_a_part_gets_it() -> None:
    outbox, part = Outbox(), Failed(GrpcError("INTERNAL", ""), "", "")
    getting = asyncio.ensure_future(outbox.get())
    await asyncio.sleep(0)
    outbox.put(part)
    assert await asyncio.wait_for(getting, 1.0) is part
    getting = asyncio.ensure_future(outbox.get())
    await asyncio.sleep(0)
    outbox.close()
    assert await asyncio.wait_for(getting, 1.0) is None
