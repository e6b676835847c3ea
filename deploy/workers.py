"""Several gateway processes on one port: starts them, restarts what dies, and leaves none behind."""

import asyncio
import ctypes
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy import handover
from deploy.config import ConfigError, load_config
from deploy.http_server import DRAIN_S

log = logging.getLogger("graceway.deploy")

_LOOK_S = 0.05
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
_STABLE_S = 10.0
_PR_SET_PDEATHSIG = 1


@dataclass
class _Worker:
    """A running process, and the pipe by which it says that it serves."""

    process: subprocess.Popen[bytes]
    said: int
    started: float

    def has_said_ready(self) -> bool:
        try:
            return os.read(self.said, 1) == b"r"
        except BlockingIOError:
            return False


class WorkerPool:
    """`size` processes that each listen on the port of `sock`. `sock` itself only keeps the port: it never listens.

    Workers read a copy of the config under `home`, which is only ever a good one: a worker that is started after
    somebody broke the file still gets the config in force.
    """

    def __init__(self, config_path: Path, home: Path, sock: socket.socket, store_url: str, size: int) -> None:
        self._config_path = config_path
        self._copy = home / "config.yaml"
        shutil.copyfile(config_path, self._copy)
        self._host, self._port = sock.getsockname()[:2]
        self._store_url = store_url
        self._size = size
        self._workers: list[_Worker] = []
        self._stopping = asyncio.Event()
        self._backoff_s = _FIRST_BACKOFF_S

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Until SIGTERM or SIGINT; then drains all and returns when none is left."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        try:
            self._workers = [self._start() for _ in range(self._size)]
            await self._wait_until_ready(on_ready)
            while not self._stopping.is_set():
                await self._replace_the_dead()
                await self._pause(_LOOK_S)
        finally:
            await self._end_all()

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._signal_all(signal.SIGTERM)
        self._stopping.set()

    def _reload(self) -> None:
        try:
            load_config(self._config_path)
        except ConfigError as error:
            log.error("the config is refused, the one before stays in force:\n%s", error)
            return
        fresh = self._copy.with_suffix(".new")
        shutil.copyfile(self._config_path, fresh)
        fresh.replace(self._copy)
        self._signal_all(signal.SIGHUP)

    async def _wait_until_ready(self, on_ready: Callable[[], None]) -> None:
        waiting = set(range(self._size))
        while waiting and not self._stopping.is_set():
            await self._replace_the_dead()
            waiting -= {i for i in waiting if self._workers[i].has_said_ready()}
            await self._pause(_LOOK_S)
        if not waiting:
            on_ready()

    async def _replace_the_dead(self) -> None:
        for index, worker in enumerate(self._workers):
            code = worker.process.poll()
            if code is None or self._stopping.is_set():
                continue
            lived_s = asyncio.get_running_loop().time() - worker.started
            self._backoff_s = (
                _FIRST_BACKOFF_S if lived_s > _STABLE_S else min(self._backoff_s * 2, _MAX_BACKOFF_S)
            )
            log.error(
                "worker %d ended (%d); another starts in %.1f s", worker.process.pid, code, self._backoff_s
            )
            os.close(worker.said)
            await self._pause(self._backoff_s)
            self._workers[index] = self._start()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _start(self) -> _Worker:
        said, say = os.pipe()
        os.set_blocking(said, False)
        arguments = [str(self._copy), self._host, str(self._port), str(say), str(os.getpid())]
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy.worker", *arguments],
            pass_fds=[say],
            start_new_session=True,
            env={**os.environ, handover.STORE_URL: self._store_url},
        )
        os.close(say)
        return _Worker(process, said, asyncio.get_running_loop().time())

    def _signal_all(self, signum: int) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signum)

    async def _end_all(self) -> None:
        self._signal_all(signal.SIGTERM)
        deadline = asyncio.get_running_loop().time() + DRAIN_S + 5.0
        while any(worker.process.poll() is None for worker in self._workers):
            if asyncio.get_running_loop().time() > deadline:
                self._signal_all(signal.SIGKILL)
            await asyncio.sleep(_LOOK_S)
        for worker in self._workers:
            os.close(worker.said)


def end_with_parent(parent: int) -> None:
    """Has the kernel tell this process to drain when `parent` dies, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)
