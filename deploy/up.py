"""`graceway up`: the whole system, followed until it is ready and ended without a trace.

This process stays small. It keeps the embedded state store and Ray's process, tells what happens, and starts Ray
again if a system that was ready loses it.
"""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from deploy.compose import store_address
from deploy.config import Config, is_local
from deploy.config_source import KeptFile
from deploy.http_server import is_taken
from deploy.log import begin_log
from deploy.progress import Progress, ready_lines
from deploy.ray_child import RayChild
from gateway.line_writer import LineWriter
from replicas.succession import ENDING, SYSTEM
from state_store.open import open_state_store
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import REPLICAS, ReplicaRecord

log = logging.getLogger("graceway.up")

EXIT_FAILED = 1
EXIT_WRONG_CONFIG = 2
EXIT_NO_PORT = 4
_ENDING_S = 30.0
_LOOK_WHILE_STARTING_S = 0.25
_LOOK_WHEN_READY_S = 1.0
_PHASES = {
    "ray": "Ray runs",
    "serve": "Ray Serve and its HAProxy run",
    "deployed": "the gateway and the replicas are deployed; engines load their models now",
}


def bring_up(path: Path, config: Config) -> int:
    """Runs the system until SIGTERM or SIGINT; the exit status. 0 means: ended as asked, nothing left."""
    lines = _begin_log(config)
    if refusal := _refusal(config):
        sys.stderr.write(refusal + "\n")
        return EXIT_WRONG_CONFIG
    host = config.server.host
    for key, port in (("port", config.server.port), ("grpc_port", config.server.grpc_port)):
        if port and is_taken(host, port):
            sys.stderr.write(
                f"{host}:{port} is taken. End what listens there, or change server.{key} in {path}\n"
            )
            return EXIT_NO_PORT
    return asyncio.run(_System(path, config, lines).run())


def _begin_log(config: Config) -> LineWriter | None:
    """Where all processes of the system log as data, they do so through this one; else it tells people what happens."""
    if config.log.format == "json":
        return begin_log(config.log)
    logging.basicConfig(level="WARNING", format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    return None


def _refusal(config: Config) -> str | None:
    if config.server.tls is not None and os.environ.get("RAY_ADDRESS"):
        return "TLS for clients is for a Ray of its own: with RAY_ADDRESS, put a proxy in front that has it"
    if config.server.port == 0:
        return "`graceway up` needs a port: set server.port"
    if config.state_store.url == "memory" and config.managed_tiers():
        return "state_store 'memory' is not shared between processes: use embedded or redis://HOST:PORT"
    if os.environ.get("RAY_ADDRESS") and is_local(config.server.host):
        return "on a cluster, proxies and gateways on all nodes reach each other: set server.host to 0.0.0.0"
    if os.environ.get("RAY_ADDRESS") and config.admin_key is None:
        return "on a cluster, gateways are asked from other nodes, too: set admin_key"
    if config.state_store.url == "embedded" and os.environ.get("RAY_ADDRESS"):
        return "an embedded state store serves one machine: with RAY_ADDRESS, use redis://HOST:PORT"
    return "\n".join(_missing_models(config)) or None


def _missing_models(config: Config) -> list[str]:
    """Models that are files here or nowhere. Another name may be a hub's, which only vLLM can tell."""
    folders = ("models/", "./", "../", "/")
    return [
        f"{name}/{tier.name}: {tier.model} is not there. Run `make setup`, or correct the path"
        for name, tier in config.managed_tiers()
        if tier.model is not None and not Path(tier.model).exists()
        if tier.backend == "llamacpp" or tier.model.startswith(folders)
    ]


class _System:
    """One run, from nothing to nothing."""

    def __init__(self, path: Path, config: Config, lines: LineWriter | None = None) -> None:
        self._lines = lines
        self._path = path
        self._kept = KeptFile(path, "up")
        self._config = config
        self._started = time.monotonic()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._ray: RayChild | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            async with store_address(self._config) as store_url:
                embedded = self._config.state_store.url == "embedded"
                self._say("state store: " + ("embedded Redis runs" if embedded else "as configured"))
                while await self._run_ray(store_url) and not self._stop.is_set():
                    self._say("starting again")
                return 0 if self._stop.is_set() else EXIT_FAILED
        finally:
            self._say("ended; nothing is left running")

    def _on_stop(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        else:
            self._say("ending: replicas, gateway, Ray and the state store; again to hurry")
        self._stop.set()

    async def _run_ray(self, store_url: str) -> bool:
        """One Ray from start to end; whether, having lost it, another one is worth a try."""
        address = os.environ.get("RAY_ADDRESS")
        self._say(f"joining Ray at {address}" if address else "starting Ray")
        take_lines = None if self._lines is None else self._lines.put_bytes
        self._ray = await RayChild.start(self._path, self._kept, self._config, store_url, take_lines)
        progress = Progress(self._config)
        try:
            await self._follow(self._ray, progress, store_url)
            if self._ray.has_exited:
                self._say("Ray's process ended by itself. Its last words:")
                sys.stderr.write(self._ray.last_words() + "\n")
        finally:
            await _tell_that_all_ends(store_url)
            await self._ray.take_down(self._hurry)
        return progress.is_ready

    async def _follow(self, ray: RayChild, progress: Progress, store_url: str) -> None:
        """Tells what happens, until the system is asked to end or ends by itself."""
        server = self._config.server
        scheme, own = ("http", None) if server.tls is None else ("https", ray.socket)
        url = f"{scheme}://{_reachable(server.host)}:{server.port}"
        asked = url if own is None else "http://localhost"
        store = open_state_store(store_url, timeout_s=1.0)
        told: list[str] = []
        async with _http(self._config.admin_key, own) as http:
            while not self._stop.is_set() and not ray.has_exited:
                phases = ray.phases()
                self._tell(_PHASES.get(phase, phase) for phase in phases[len(told) :])
                told = phases
                self._tell(progress.of_replicas(self._now_s(), await _records(store)))
                was_ready = progress.is_ready
                self._tell(progress.of_status(await _status(http, asked)))
                if progress.is_ready and not was_ready:
                    _print(ready_lines(self._config, url))
                await ray.follow_certificates()
                look_s = _LOOK_WHEN_READY_S if progress.is_ready else _LOOK_WHILE_STARTING_S
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), look_s)
        await store.close()

    def _reload(self) -> None:
        standing = self._kept.take()
        if self._ray is not None:
            self._ray.take_over()
        if not standing.is_older_than_file:
            self._say(f"{self._path} is taken over")

    def _tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._say(line)

    def _now_s(self) -> float:
        return time.monotonic() - self._started

    def _say(self, line: str) -> None:
        if self._lines is None:
            _print([f"[{self._now_s():5.1f} s] {line}"])
        else:
            log.info("%s", line)


async def _tell_that_all_ends(store_url: str) -> None:
    """So that no replica waits for a successor."""
    store = open_state_store(store_url, timeout_s=1.0)
    with suppress(StateStoreUnavailable):
        await store.put(SYSTEM, ENDING, b"1", ttl_s=_ENDING_S)
    await store.close()


async def _records(store: StateStore) -> dict[str, ReplicaRecord]:
    try:
        values = await store.scan(REPLICAS)
    except StateStoreUnavailable:
        return {}
    records = {key: ReplicaRecord.from_bytes(value) for key, value in values.items()}
    return {key: record for key, record in records.items() if record is not None}


async def _status(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """What the gateway says of itself; nothing while there is none."""
    try:
        async with http.get(f"{url}/status") as answer:
            report = await answer.json() if answer.status == 200 else {}
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
        return {}
    return report if isinstance(report, dict) and "models" in report else {}


@asynccontextmanager
async def _http(admin_key: str | None, socket: Path | None) -> AsyncIterator[aiohttp.ClientSession]:
    """Past the network where there is a socket."""
    connector = None if socket is None else aiohttp.UnixConnector(str(socket))
    headers = {} if admin_key is None else {"authorization": f"Bearer {admin_key}"}
    timeout = aiohttp.ClientTimeout(total=2.0)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        yield session


def _reachable(host: str) -> str:
    """An address by which this machine reaches a server that listens on `host`."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
