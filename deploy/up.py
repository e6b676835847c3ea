"""`graceway up`: the whole system, followed until it is ready and ended without a trace.

This process stays small. It keeps the embedded state store and one guarded child, which runs Ray; everything else
descends from that child, so the guard ends all of it whatever happens to any process, this one included.
"""

import asyncio
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from deploy import handover
from deploy.compose import store_address
from deploy.config import Config, ConfigError, load_config
from deploy.haproxy import haproxy_environment
from deploy.http_server import free_ports, is_taken
from deploy.progress import Progress, ready_lines
from state_store.child_process import ChildProcess
from state_store.open import open_state_store
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import REPLICAS, ReplicaRecord

EXIT_FAILED = 1
EXIT_WRONG_CONFIG = 2
EXIT_NO_PORT = 4
_LOOK_S = 0.25
_LONGEST_TEMP = 14
_TAKE_DOWN_S = 20.0
_GUARD_GRACE_S = 5.0
_PORTS = ("RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", "DASHBOARD_METRIC_PORT", "AUTOSCALER_METRIC_PORT")
"""Of servers that nobody asks here but that would collide with those of another Ray on this machine."""
_PHASES = {
    "ray": "Ray runs",
    "serve": "Ray Serve and its HAProxy run",
    "deployed": "the gateway and the replicas are deployed; engines load their models now",
}


def bring_up(path: Path, config: Config) -> int:
    """Runs the system until SIGTERM or SIGINT; the exit status. 0 means: ended as asked, nothing left."""
    logging.basicConfig(level="WARNING", format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if refusal := _refusal(config):
        sys.stderr.write(refusal + "\n")
        return EXIT_WRONG_CONFIG
    host, port = config.server.host, config.server.port
    if is_taken(host, port):
        sys.stderr.write(f"{host}:{port} is taken. End what listens there, or change server.port in {path}\n")
        return EXIT_NO_PORT
    return asyncio.run(_System(path, config).run())


def _refusal(config: Config) -> str | None:
    if config.server.port == 0:
        return "`graceway up` needs a port: set server.port"
    if config.state_store.url == "memory" and config.managed_tiers():
        return "state_store 'memory' is not shared between processes: use embedded or redis://HOST:PORT"
    if missing := _missing_models(config):
        return "\n".join(missing)
    if config.state_store.url == "embedded" and os.environ.get("RAY_ADDRESS"):
        return "an embedded state store serves one machine: with RAY_ADDRESS, use redis://HOST:PORT"
    return None


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

    def __init__(self, path: Path, config: Config) -> None:
        self._path = path
        self._config = config
        self._progress = Progress(config)
        self._started = time.monotonic()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._phases_told = 0

    async def run(self) -> int:
        self._take_signals()
        home = _new_home()
        try:
            async with store_address(self._config) as store_url:
                self._say(
                    "state store: " + ("embedded Redis runs" if "unix://" in store_url else "as configured")
                )
                return await self._run_ray(home, store_url)
        finally:
            shutil.rmtree(home, ignore_errors=True)
            self._say("ended; nothing is left running")

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_stop)

    def _on_stop(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        else:
            self._say("ending: replicas, gateway, Ray and the state store; again to hurry")
        self._stop.set()

    async def _run_ray(self, home: Path, store_url: str) -> int:
        copy, log = home / "config.yaml", home / "system.log"
        shutil.copyfile(self._path, copy)
        (home / "tmp").mkdir()
        self._say("starting Ray" if not os.environ.get("RAY_ADDRESS") else "joining Ray at RAY_ADDRESS")
        child = await ChildProcess.start(
            [sys.executable, "-m", "deploy.ray_system", str(copy), str(home)],
            env=_environment(self._path, self._config, home, store_url),
            log_path=log,
            grace_s=_GUARD_GRACE_S,
        )
        try:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload, copy, child)
            await self._follow(home, store_url, child)
            if not child.has_exited:
                return 0
            self._say("Ray ended by itself. Its last words:")
            sys.stderr.write(_tail(log))
            return EXIT_FAILED
        finally:
            await self._take_down(home, child)

    async def _follow(self, home: Path, store_url: str, child: ChildProcess) -> None:
        """Tells what happens, until the system is asked to end or ends by itself."""
        url = f"http://{_reachable(self._config.server.host)}:{self._config.server.port}"
        store = open_state_store(store_url, timeout_s=1.0)
        async with _http() as http:
            while not self._stop.is_set() and not child.has_exited:
                self._tell_phases(home)
                self._tell(self._progress.of_replicas(self._now_s(), await _records(store)))
                was_ready = self._progress.is_ready
                self._tell(self._progress.of_status(await _status(http, url)))
                if self._progress.is_ready and not was_ready:
                    _print(ready_lines(self._config, url))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _LOOK_S if not was_ready else 4 * _LOOK_S)
        await store.close()

    def _reload(self, copy: Path, child: ChildProcess) -> None:
        try:
            config = load_config(self._path)
        except ConfigError as error:
            sys.stderr.write(f"the config is refused, the one before stays in force:\n{error}\n")
            return
        if config.server != self._config.server or config.state_store != self._config.state_store:
            self._say("a change of 'server' or 'state_store' needs a restart; the rest is taken over")
        temporary = copy.with_suffix(".new")
        shutil.copyfile(self._path, temporary)
        temporary.replace(copy)
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGHUP)
        self._say(f"{self._path} is taken over")

    async def _take_down(self, home: Path, child: ChildProcess) -> None:
        """In good order when the system was up, at once when it was not or the operator is in a hurry."""
        if "deployed" in _phases(home) and not child.has_exited:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
            gone, hurry = asyncio.ensure_future(child.gone()), asyncio.ensure_future(self._hurry.wait())
            await asyncio.wait({gone, hurry}, timeout=_TAKE_DOWN_S, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            hurry.cancel()
        await child.stop()

    def _tell_phases(self, home: Path) -> None:
        phases = _phases(home)
        for phase in phases[self._phases_told :]:
            self._say(_PHASES.get(phase, phase))
        self._phases_told = len(phases)

    def _tell(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._say(line)

    def _now_s(self) -> float:
        return time.monotonic() - self._started

    def _say(self, line: str) -> None:
        _print([f"[{self._now_s():5.1f} s] {line}"])


def _new_home() -> Path:
    """A private folder with a short path: below it lie sockets, whose paths HAProxy bounds at 97 bytes."""
    usual = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="gw-", dir=usual if len(usual) <= _LONGEST_TEMP else "/tmp"))


def _environment(path: Path, config: Config, home: Path, store_url: str) -> dict[str, str]:
    """Of the guarded child, and so of all that it starts here: Ray, Serve, HAProxy, every engine."""
    joined = bool(os.environ.get("RAY_ADDRESS"))
    return {
        # Where bytecode may not be kept, each of a dozen processes compiles all of Ray, and vLLM's all of torch.
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        handover.STORE_URL: store_url,
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_ENABLE_DIRECT_INGRESS": "1",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "deploy.ingress.middlewares",
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        **({} if joined else _environment_of_own_ray(path, config, home)),
    }


def _environment_of_own_ray(path: Path, config: Config, home: Path) -> dict[str, str]:
    """Keeps a Ray of our own to this machine and its files to `home`, so that several can run side by side."""
    return {
        **haproxy_environment(home, config.server.host, config.server.port, config.request_timeout_s + 30.0),
        "TMPDIR": str(home / "tmp"),
        handover.CONFIG: str(path.absolute()),
        handover.PID: str(os.getpid()),
        # Ray's servers then listen on loopback only. The name is of the systems where that is the default.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        **dict(zip(_PORTS, map(str, free_ports(len(_PORTS))), strict=True)),
    }


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
async def _http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2.0)) as session:
        yield session


def _phases(home: Path) -> list[str]:
    try:
        return (home / "phases").read_text().split()
    except FileNotFoundError:
        return []


def _reachable(host: str) -> str:
    """An address by which this machine reaches a server that listens on `host`."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _tail(log: Path) -> str:
    try:
        return log.read_text(errors="replace")[-3000:]
    except FileNotFoundError:
        return ""


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
