"""Ray's process as `graceway up` sees it: a guarded child with a private folder, from which all else descends.

The guard ends every descendant whatever happens to any process: Ray's, HAProxy, supervisors, engines.
"""

import asyncio
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from deploy import handover
from deploy.config import Config
from deploy.config_source import KeptFile
from deploy.front_tls import FrontTls
from deploy.haproxy import CONTROL_SOCKET, OWN_SOCKET, haproxy_environment
from deploy.http_server import free_ports
from deploy.log import LogPipe
from state_store.child_process import ChildProcess

_LONGEST_TEMP = 14
_TAKE_DOWN_S = 20.0
_GUARD_GRACE_S = 5.0
_LAST_WORDS = 3000
_PREFIX = "gw-"
_PORTS = ("RAY_SERVE_FALLBACK_PROXY_HTTP_PORT", "DASHBOARD_METRIC_PORT", "AUTOSCALER_METRIC_PORT")
"""Of servers that nobody asks here but that would collide with those of another Ray on this machine."""

_ON_A_CLUSTER = {"RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH": "deploy.serve_placement.begin"}
"""Of one node there is nothing to choose."""


class RayChild:
    """Runs `deploy.ray_system` from `start` to `take_down`."""

    def __init__(
        self, home: Path, process: ChildProcess, log: LogPipe | None, tls: FrontTls | None = None
    ) -> None:
        self._home, self._tls = home, tls
        self._process = process
        self._log = log

    @classmethod
    async def start(
        cls,
        path: Path,
        kept: KeptFile,
        config: Config,
        store_url: str,
        take_lines: Callable[[bytes], None] | None = None,
    ) -> Self:
        """`kept` is the config at `path`, known to be good. `take_lines` gets what its processes log."""
        home = _new_home()
        kept.lie_in(home)
        (home / "tmp").mkdir()
        log = None if take_lines is None else LogPipe(home / "log")
        if log is not None and take_lines is not None:
            await log.open(take_lines)
        tls = None if config.server.tls is None else FrontTls(config.server.tls, home)
        process = await ChildProcess.start(
            [sys.executable, "-m", "deploy.ray_system", str(home)],
            env=_environment(path, config, home, store_url, tls) | _log_environment(log),
            log_path=home / "system.log",
            grace_s=_GUARD_GRACE_S,
        )
        return cls(home, process, log, tls)

    @property
    def socket(self) -> Path:
        """Where this process asks the system, in plain HTTP, when it has HAProxy to itself."""
        return self._home / OWN_SOCKET

    async def follow_certificates(self) -> None:
        """Takes up renewed ones."""
        if self._tls is not None:
            await self._tls.follow(self._home / CONTROL_SOCKET)

    @property
    def has_exited(self) -> bool:
        return self._process.has_exited

    def phases(self) -> list[str]:
        """What it has reached: `ray`, `serve`, `deployed`."""
        try:
            return (self._home / "phases").read_text().split()
        except FileNotFoundError:
            return []

    def last_words(self) -> str:
        try:
            return (self._home / "system.log").read_text(errors="replace")[-_LAST_WORDS:]
        except FileNotFoundError:
            return ""

    def take_over(self) -> None:
        """Has it deploy what is kept of the config, and how that stands to its file."""
        self._signal(signal.SIGHUP)

    async def take_down(self, hurry: asyncio.Event) -> None:
        """In good order when the system was deployed, at once when it was not or as soon as `hurry` is set."""
        if "deployed" in self.phases() and not self.has_exited:
            self._signal(signal.SIGTERM)
            waits = [asyncio.ensure_future(self._process.gone()), asyncio.ensure_future(hurry.wait())]
            await asyncio.wait(waits, timeout=_TAKE_DOWN_S, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        await self._process.stop()
        if self._log is not None:
            self._log.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _signal(self, signum: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signum)


def _new_home() -> Path:
    """A private folder with a short path: below it lie sockets, whose paths HAProxy bounds at 97 bytes."""
    usual = tempfile.gettempdir()
    folder = Path(usual if len(usual) <= _LONGEST_TEMP else "/tmp")
    _sweep(folder)
    home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=folder))
    (home / "pid").write_text(str(os.getpid()))
    return home


def _sweep(folder: Path) -> None:
    """Removes homes of ours that a killed `graceway up` could not remove."""
    for pid_file in folder.glob(f"{_PREFIX}*/pid"):
        with suppress(OSError, ValueError):
            if (
                pid_file.stat().st_uid == os.getuid()
                and not Path(f"/proc/{int(pid_file.read_text())}").exists()
            ):
                shutil.rmtree(pid_file.parent, ignore_errors=True)


def _environment(
    path: Path, config: Config, home: Path, store_url: str, tls: FrontTls | None
) -> dict[str, str]:
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
        # Three times this, and Serve gives up its HAProxy before it has started: a busy machine takes its time.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
        # A dead HAProxy is replaced after three of these.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "0.3",
        # How often replicas report their tier's load: the scaler holds on data that is older than 15 s.
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
        "RAY_USAGE_STATS_ENABLED": "0",
        **(_ON_A_CLUSTER if joined else _environment_of_own_ray(path, config, home, tls)),
    }


def _log_environment(log: LogPipe | None) -> dict[str, str]:
    return {} if log is None else {handover.LOG_PIPE: str(log.path)}


def _environment_of_own_ray(path: Path, config: Config, home: Path, tls: FrontTls | None) -> dict[str, str]:
    """Keeps a Ray of our own to this machine and its files to `home`, so that several can run side by side."""
    drain_s = config.request_timeout_s + 30.0
    return {
        **haproxy_environment(home, config.server.host, config.server.port, drain_s, tls),
        "TMPDIR": str(home / "tmp"),
        handover.CONFIG: str(path.absolute()),
        handover.HOME: str(home),
        handover.PID: str(os.getpid()),
        # By default Ray has its workers, and so the gateway and the engines, yield to every other process.
        "RAY_worker_niceness": "0",
        # Ray's servers then listen on loopback only. The name is of the systems where that is the default.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        **dict(zip(_PORTS, map(str, free_ports(len(_PORTS))), strict=True)),
    }
