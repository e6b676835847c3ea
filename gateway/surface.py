"""The routes that are not hot: models, health, metrics, status, the live page, administration."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import HTTPException
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from gateway.access import may_administer, may_look
from gateway.callers import Callers
from gateway.config_standing import ConfigStanding
from gateway.exercise import Exercise, read_exercise
from gateway.openapi import document
from gateway.page import BACK_OFF_S, LiveStatus, load_page
from gateway.pin import Pin, read_pin
from gateway.preemption import Preemption, read_preemption
from gateway.request import PATHS
from state_store.protocol import StateStoreUnavailable

Json = dict[str, Any]
Next = Callable[[Request], Awaitable[Response]]


class Describes(Protocol):
    """What the surface shows of a gateway, and what it may ask of it."""

    @property
    def admin_key(self) -> str | None: ...
    @property
    def callers(self) -> Callers: ...
    @property
    def config(self) -> ConfigStanding: ...
    @property
    def is_ready(self) -> bool: ...
    def models(self) -> Json: ...
    def status(self) -> Json: ...
    async def chronicle(self) -> Json: ...
    def metrics(self) -> bytes: ...
    async def reload_from_file(self) -> str | None:
        """Re-reads the config; what is wrong with it, or None."""
        ...

    def begin_drain(self) -> None: ...
    def pin(self, pin: Pin) -> None:
        """Raises ValueError: there is no such model or tier."""
        ...

    async def preempt(self, told: Preemption) -> list[str]:
        """Raises ValueError: no managed replica is meant; StateStoreUnavailable."""
        ...

    def exercised(self, exercise: Exercise) -> None:
        """Raises ValueError: there is no such model or tier."""
        ...


def build_surface(gateway: Describes) -> FastAPI:
    """The FastAPI application around one gateway."""
    # A redirect would name the scheme and host that this process sees, which are seldom those of its client.
    app = FastAPI(
        title="Graceway",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
    )
    _add_errors(app)
    _add_guard(app, gateway)

    @app.get("/v1/models")
    async def models() -> Json:
        return gateway.models()

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        found = [m for m in gateway.models()["data"] if m["id"] == name]
        if not found:
            return _error(404, f"The model `{name}` does not exist.", "model_not_found")
        return JSONResponse(found[0])

    @app.get("/health/live")
    async def live() -> Json:
        return {"live": True}

    @app.get("/health/ready")
    async def ready() -> Response:
        return JSONResponse({"ready": gateway.is_ready}, 200 if gateway.is_ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return PlainTextResponse(gateway.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/status")
    async def status() -> Json:
        return gateway.status()

    @app.get("/chronicle")
    async def chronicle() -> Json:
        return await gateway.chronicle()

    _add_page(app, gateway)
    _add_admin(app, gateway)
    _add_hot_paths(app)
    app.openapi = lambda: document(app, [m["id"] for m in gateway.models()["data"]])  # type: ignore[method-assign]
    return app


OPEN = ("/health/live", "/health/ready")
"""Paths that tell a stranger nothing."""
BASIC = 'Basic realm="Graceway: any name, and a key as the password", charset="UTF-8"'
"""Makes a browser ask for the key."""


def _add_guard(app: FastAPI, gateway: Describes) -> None:
    """With keys configured, strangers see nothing but whether it lives."""

    @app.middleware("http")
    async def guard(request: Request, call_next: Next) -> Response:
        host = request.client.host if request.client else ""
        authorization = request.headers.get("authorization")
        is_open = request.url.path in OPEN or request.url.path.startswith("/admin/")
        if is_open or may_look(authorization, host, gateway.admin_key, gateway.callers):
            return await call_next(request)
        # An API's client would show its user a dialog for it.
        asks = None if request.url.path.startswith("/v1") else {"WWW-Authenticate": BASIC}
        return _error(401, "a valid API key is needed", "invalid_api_key", asks)


def _add_page(app: FastAPI, gateway: Describes) -> None:
    page, live = load_page(), LiveStatus(gateway.status)

    @app.get("/", include_in_schema=False)
    async def show() -> Response:
        return Response(page.html, media_type="text/html; charset=utf-8", headers=dict(page.headers))

    @app.get("/status/live", include_in_schema=False)
    async def poll() -> Response:
        body = live.poll(asyncio.get_running_loop().time())
        if body is None:
            return Response(status_code=503, headers={"Retry-After": str(BACK_OFF_S)})
        return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})


def _add_admin(app: FastAPI, gateway: Describes) -> None:
    def refusal(request: Request) -> Response | None:
        host = request.client.host if request.client else ""
        if may_administer(request.headers.get("authorization"), host, gateway.admin_key):
            return None
        return _error(403, "this needs the admin key, or without one a client on loopback", "forbidden")

    @app.post("/admin/reload")
    async def reload(request: Request) -> Response:
        if (no := refusal(request)) is not None:
            return no
        if (wrong := await gateway.reload_from_file()) is not None:
            return _error(400, wrong, "bad_config")
        return JSONResponse({"reloaded": True, "needs_restart": list(gateway.config.needs_restart)})

    @app.post("/admin/pin")
    async def pin(request: Request) -> Response:
        if (no := refusal(request)) is not None:
            return no
        try:
            wanted = read_pin(await request.body())
            gateway.pin(wanted)
        except ValueError as error:
            return _error(400, str(error), "bad_pin")
        return JSONResponse({"pinned": wanted.tier, "expires_in_s": wanted.for_s if wanted.tier else None})

    @app.post("/admin/preempt")
    async def preempt(request: Request) -> Response:
        if (no := refusal(request)) is not None:
            return no
        try:
            told = read_preemption(await request.body())
            return JSONResponse({"draining": await gateway.preempt(told), "grace_s": told.grace_s})
        except ValueError as error:
            return _error(400, str(error), "bad_preemption")
        except StateStoreUnavailable:
            return _error(503, "the state store is away, so nobody can be told", "no_store")

    @app.post("/admin/exercised")
    async def exercised(request: Request) -> Response:
        if (no := refusal(request)) is not None:
            return no
        try:
            gateway.exercised(read_exercise(await request.body()))
        except ValueError as error:
            return _error(400, str(error), "bad_exercise")
        return JSONResponse({"noted": True})

    @app.post("/admin/drain")
    async def drain(request: Request) -> Response:
        if (no := refusal(request)) is not None:
            return no
        gateway.begin_drain()
        return JSONResponse({"draining": True})


def _add_hot_paths(app: FastAPI) -> None:
    """Requests on these paths do not come through here; other methods on them do, and are a 405 rather than a 404."""
    for path in PATHS.values():
        app.add_api_route(path, _unreached, methods=["POST"], include_in_schema=False)


async def _unreached() -> Response:
    return _error(405, "POST a request", None)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(StarletteHTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        if error.status_code != 404:
            return _error(error.status_code, str(error.detail), None, error.headers)
        served = ", ".join([*PATHS.values(), "/v1/models"])
        is_api = request.url.path.startswith("/v1/")
        more = f" Of OpenAI's API there are {served}." if is_api else ""
        return _error(404, f"There is no {request.url.path} here.{more}", "not_found")


def _error(status: int, message: str, code: str | None, headers: Mapping[str, str] | None = None) -> Response:
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return JSONResponse(body, status, headers)
