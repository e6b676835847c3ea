"""The short way through a Serve replica: who answers what."""

from typing import Any

import pytest

from deploy import ingress

Message = dict[str, Any]


def app(name: str) -> Any:
    async def answer(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"from": name})

    return answer


async def answers(application: Any, scope: Message) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    await application(scope, receive, send)
    return sent


@pytest.mark.parametrize(
    ("scope", "who"),
    [
        ({"type": "http", "path": "/v1/models"}, "gateway"),
        ({"type": "http", "path": "/"}, "gateway"),
        ({"type": "http", "path": "/-/healthz"}, "serve"),
        ({"type": "http", "path": "/-/routes"}, "serve"),
        ({"type": "websocket", "path": "/"}, "serve"),
    ],
)
async def test_only_serves_own_paths_go_to_serve(scope: Message, who: str) -> None:
    ingress.attach(app("gateway"))
    [middleware] = ingress.middlewares()
    assert await answers(middleware.cls(app("serve")), scope) == [{"from": who}]


async def test_the_long_way_has_a_lifespan() -> None:
    told: list[Message] = []
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        told.append(message)

    application: Any = ingress.with_lifespan(app("gateway"))
    await application({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in told] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]
    assert await answers(application, {"type": "http", "path": "/"}) == [{"from": "gateway"}]
