"""The short way through a Serve replica: requests go straight from its HTTP server to the gateway.

Serve's own way reads `x-request-timeout-seconds` itself and answers 408 in plain text, keeps books that the
gateway keeps too, and costs about as much CPU as the gateway. What Serve asks for its own sake (`/-/…`) still goes
to Serve. Its replica finishes the connections of its HTTP server before it ends, so a drain loses nothing.
"""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

_gateways: list[ASGIApp] = []
"""The gateway of this process. Serve builds its HTTP server where nothing can be handed in, hence a variable."""


def attach(gateway: ASGIApp) -> None:
    """Makes `gateway` answer in this replica from now on."""
    _gateways[:] = [gateway]


async def attached(scope: Scope, receive: Receive, send: Send) -> None:
    """The gateway of this process as an application that can be named before there is one."""
    await _gateways[0](scope, receive, send)


class ShortCut:
    """An ASGI middleware around Serve's own application."""

    def __init__(self, serve: ASGIApp) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_serves_own = scope["type"] != "http" or scope["path"].startswith("/-/")
        app = self._serve if is_serves_own or not _gateways else _gateways[0]
        await app(scope, receive, send)


def middlewares() -> list[Middleware]:
    """What Serve calls by its import path, once per HTTP server."""
    return [Middleware(ShortCut)]


def with_lifespan(gateway: ASGIApp) -> ASGIApp:
    """The gateway for Serve's long way, which is taken while no replica can be reached directly."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await gateway(scope, receive, send)
            return
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    return app
