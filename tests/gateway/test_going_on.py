"""A broken answer goes on at another replica, which gets a request that the client never sent.

The whole gateway, over two replicas of which the first breaks off and the second says what it is told.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson
import pytest

from gateway.app import Gateway
from gateway.policy.decision import Shed
from gateway.reply import Served
from gateway.request import Request
from gateway.specs import Endpoint, GatewaySpec, HealthSpec, ModelSpec, RoutingSpec, TierSpec
from gateway.sse import EventSplitter
from state_store.memory import MemoryStateStore
from tests.gateway.recorded import CHAT_PROMPT_IDS, Json, chat_stream, text_token
from tests.gateway.replica_server import CHUNKED, Visit, answer, chunk, replica_server
from tests.gateway.requests import chat

MODELS = orjson.dumps({"object": "list", "data": [{"id": "m", "max_model_len": 100}]})


def events(*payloads: Json | bytes) -> bytes:
    encoded = (p if isinstance(p, bytes) else orjson.dumps(p) for p in payloads)
    return b"".join(chunk(b"data: " + e + b"\n\n") for e in encoded)


@dataclass
class Replica:
    """Answers health checks, and generation requests one by one with what it is told; then it closes."""

    says: list[bytes]
    asked: list[tuple[str, Json]] = field(default_factory=list)

    async def serve(self, visit: Visit) -> None:
        while True:
            body = await visit.request()
            if visit.path == "/health":
                await visit.say(answer(b"{}"))
            elif visit.path == "/v1/models":
                await visit.say(answer(MODELS))
            elif visit.path == "/metrics":
                await visit.say(answer(b"", status="404 Not Found"))
            else:
                self.asked.append((visit.path, orjson.loads(body)))
                await visit.say(self.says.pop(0))
                return


@dataclass
class Client:
    """The client's side: all that it got."""

    stream: bytes = b""
    is_ended: bool = False
    body: bytes = b""
    status: int = 0
    shed: Shed | None = None

    def push(self, served: Served, frames: bytes) -> None:
        assert not self.is_ended
        self.stream += frames

    async def end(self) -> None:
        self.is_ended = True

    async def whole(self, served: Served, body: bytes, status: int = 200) -> None:
        assert not self.stream, "a second answer after a stream has begun"
        self.body, self.status = body, status

    async def refuse(self, shed: Shed, request_id: str) -> None:
        assert not self.stream
        self.shed = shed

    @property
    def events(self) -> list[bytes]:
        return EventSplitter().feed(self.stream)

    @property
    def said(self) -> str:
        parsed = [orjson.loads(e) for e in self.events if e != b"[DONE]"]
        return "".join(c["delta"].get("content") or "" for e in parsed for c in e.get("choices", []))


@asynccontextmanager
async def gateway(first: Replica, second: Replica) -> AsyncIterator[Gateway]:
    """The first replica is in the gateway's own zone, so it is asked first."""
    async with replica_server(first.serve) as a, replica_server(second.serve) as b:
        replicas = (Endpoint(url=a.url, zone="here"), Endpoint(url=b.url, zone="there"))
        tier = TierSpec(name="best", backend="openai", served_model="m", replicas=replicas, probe=None)
        spec = GatewaySpec(
            models={"chat": ModelSpec(tiers=(tier,))},
            health=HealthSpec(interval_s=60.0),
            routing=RoutingSpec(zone="here"),
        )
        found = Gateway(spec, MemoryStateStore(), Random(0))
        await found.start()
        try:
            yield found
        finally:
            await found.stop()


async def ask(request: Request, first: Replica, second: Replica) -> Client:
    client = Client()
    async with gateway(first, second) as found:
        await asyncio.wait_for(found.answer(request, client), 10)
    return client


def breaks_off() -> Replica:
    """After two tokens."""
    return Replica([CHUNKED + events(*chat_stream()[:3])])


REST = [text_token("!", [17], None, [*CHAT_PROMPT_IDS, 19556, 665]), text_token(" I", [339], "stop")]


@pytest.mark.parametrize(("limit", "left"), [({}, 100 - 33 - 2), ({"max_tokens": 9}, 7)])
async def test_a_chat_goes_on_by_token_ids_whether_it_names_a_limit_or_not(
    limit: dict[str, Any], left: int
) -> None:
    second = Replica([CHUNKED + events(*REST, b"[DONE]") + chunk(b"")])
    client = await ask(chat(**limit), breaks_off(), second)
    ((path, body),) = second.asked
    assert path == "/v1/completions"
    assert body["prompt"] == [*CHAT_PROMPT_IDS, 19556, 665]
    assert body["max_tokens"] == left
    assert (client.said, client.events[-1], client.is_ended) == ("Hello there! I", b"[DONE]", True)


WHY = b'{"error": {"message": "too long", "type": "BadRequestError", "param": null, "code": 400}}'
REFUSAL = answer(WHY, status="400 Bad Request")


async def test_a_continuation_that_is_refused_ends_the_stream_with_the_error_event() -> None:
    client = await ask(chat(max_tokens=9), breaks_off(), Replica([REFUSAL]))
    assert client.said == "Hello there"
    error = orjson.loads(client.events[-1])["error"]
    assert (error["type"], error["code"]) == ("stream_broken", "no_replica")
    assert b"[DONE]" not in client.events
    assert client.is_ended
    assert client.status == 0


async def test_of_an_answer_that_the_client_has_nothing_of_it_begins_anew() -> None:
    second = Replica([REFUSAL, CHUNKED + events(*chat_stream(), b"[DONE]") + chunk(b"")])
    client = await ask(chat(stream=False, max_tokens=4), breaks_off(), second)
    assert [path for path, _ in second.asked] == ["/v1/completions", "/v1/chat/completions"]
    assert (client.status, client.shed) == (200, None)
    assert orjson.loads(client.body)["choices"][0]["message"]["content"] == "Hello there! I"


async def test_the_client_s_own_mistake_is_the_client_s_answer() -> None:
    second = Replica([])
    client = await ask(chat(), Replica([REFUSAL]), second)
    assert (client.status, client.body) == (400, WHY)
    assert second.asked == []
