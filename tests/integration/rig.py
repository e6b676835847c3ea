"""The real gateway over simulated engines: started in the test's own loop, so that one costs milliseconds."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from deploy.compose import build_gateway
from deploy.config import load_config, to_gateway_spec
from deploy.config_source import OwnFile
from deploy.http_server import _Server, _uvicorn_config, address_of, listening_socket
from gateway.app import Gateway
from gateway.server_tls import ServerTls
from state_store.protocol import StateStore
from tests.rig import EngineProcess, eventually

Json = dict[str, Any]

PATIENT: Json = {"ttft_s": 20.0, "itl_s": 5.0}
"""An SLO under which no slow machine makes a replica look slow."""
BRISK: Json = {"ttft_s": 0.5, "itl_s": 0.2}
"""One under which silence is soon noticed."""


def tier(name: str, *engines: EngineProcess | str, **more: Any) -> Json:
    """A tier of the config over these engines; the first is in the gateway's own zone, so it is asked first."""
    urls = [
        {"url": e if isinstance(e, str) else e.url, "zone": z}
        for e, z in zip(engines, "abcdef", strict=False)
    ]
    served = "small" if name == "small" else "m"
    base = {"name": name, "backend": "openai", "served_model": served, "replicas": urls, "slots": 8}
    return {**base, "slo": PATIENT, **more}


def canned(text: str = "Please come back later.") -> Json:
    return {"name": "canned", "backend": "canned", "text": text}


class RunningGateway:
    """A gateway that serves at `url`."""

    def __init__(self, gateway: Gateway, url: str, path: Path, http: aiohttp.ClientSession) -> None:
        self.gateway, self.url, self._path, self._http = gateway, url, path, http

    async def get(self, path: str) -> tuple[int, bytes]:
        async with self._http.get(self.url + path) as response:
            return response.status, await response.read()

    async def post(
        self, path: str, headers: dict[str, str] | None = None, body: Json | None = None
    ) -> tuple[int, Json]:
        async with self._http.post(self.url + path, headers=headers, json=body) as response:
            return response.status, await response.json()

    async def status(self) -> Json:
        _, body = await self.get("/status")
        status: Json = json.loads(body)
        return status

    async def replicas(self, model: str = "chat") -> dict[str, Json]:
        """All replicas of a model by URL."""
        tiers = (await self.status())["models"][model]["tiers"]
        return {r["url"]: r for t in tiers for r in t["replicas"]}

    async def state_of(self, engine: EngineProcess) -> str:
        return str((await self.replicas())[engine.url]["state"])

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        _, body = await self.get("/metrics")
        samples = (s for f in text_string_to_metric_families(body.decode()) for s in f.samples)
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    async def is_idle(self) -> bool:
        """Whether it counts nothing as running or waiting."""
        status = await self.status()
        tiers = [t for m in status["models"].values() for t in m["tiers"]]
        counts = [t["waiting"] for t in tiers] + [r["in_flight"] for t in tiers for r in t["replicas"]]
        return not any(counts) and not any(status["queue"].values())

    async def reload(
        self, *tiers: Json, models: dict[str, list[Json]] | None = None, **sections: Any
    ) -> None:
        """Puts a changed config in force."""
        write_config(self._path, models or {"chat": list(tiers)}, sections)
        await self.gateway.reload(to_gateway_spec(load_config(self._path)))


def write_config(path: Path, models: dict[str, list[Json]], sections: Json) -> None:
    """`features` of the sections are those of every model."""
    features = {"features": sections["features"]} if "features" in sections else {}
    sections = {name: section for name, section in sections.items() if name != "features"}
    # JSON is YAML.
    config = {"state_store": {"url": "memory"}, "routing": {"zone": "a"}, **sections}
    path.write_text(
        json.dumps(config | {"models": {name: {**features, "tiers": t} for name, t in models.items()}})
    )


@asynccontextmanager
async def serving(
    path: Path,
    *tiers: Json,
    models: dict[str, list[Json]] | None = None,
    store: StateStore | str = "memory",
    **sections: Any,
) -> AsyncIterator[RunningGateway]:
    """A gateway on these tiers for the model `chat`; `sections` are further parts of the config.

    `store` is one, or the URL of one; that may be a Unix socket, which the config's own may not.
    """
    write_config(path, models or {"chat": list(tiers)}, sections)
    config = load_config(path)
    if isinstance(store, str):
        gateway = build_gateway(config, store, OwnFile(path, config).read)
    else:
        gateway = Gateway(to_gateway_spec(config), store)
    tls = None if config.server.tls is None else ServerTls(config.server.tls)
    server = _Server(_uvicorn_config(gateway, tls), lambda: None)
    async with AsyncExitStack() as stack:
        sock = stack.enter_context(listening_socket("127.0.0.1", 0))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=[sock])
        stack.push_async_callback(_stop, server)
        yield RunningGateway(gateway, address_of(sock, config.server.tls), path, http)


async def _stop(server: _Server) -> None:
    """uvicorn's shutdown, without the tenth of a second that it always waits."""
    for listener in server.servers:
        listener.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    if server.server_state.tasks:
        await asyncio.wait(server.server_state.tasks, timeout=2.0)


async def all_idle(gateway: RunningGateway, *engines: EngineProcess, within_s: float = 5.0) -> None:
    """Returns once nothing runs or waits anywhere; raises TimeoutError when something stays behind."""

    async def idle() -> bool:
        stats = [s for e in engines if (s := await stats_of(e)) is not None]
        return not any(s["running"] or s["waiting"] for s in stats) and await gateway.is_idle()

    await eventually(idle, within_s)


async def stats_of(engine: EngineProcess) -> Json | None:
    """The engine's own counts; None of a dead one."""
    try:
        return await engine.stats()
    except aiohttp.ClientConnectionError:
        return None


async def attempts(request_id: str, *engines: EngineProcess) -> list[Json]:
    """What the engines saw of one client's request, engine by engine, with the JSON that they got as `json`."""
    seen = []
    for engine in engines:
        if await stats_of(engine) is not None:
            found = [r for r in await engine.requests() if r["headers"].get("x-request-id") == request_id]
            seen += [{**r, "engine": engine.url, "json": json.loads(r["body"])} for r in found]
    return seen
