"""Several gateway processes on one port: starts them, restarts what dies, and leaves none behind."""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy import handover
from deploy.config_source import KeptFile
from deploy.http_server import DRAIN_S

log = logging.getLogger("graceway.deploy")

_LOOK_S = 0.05
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
_STABLE_S = 10.0
_PR_SET_PDEATHSIG = 1


@dataclass
class _Worker:
    """A running process, the pipe by which it says that it serves, and of which reading of the config it has been told."""

    process: subprocess.Popen[bytes]
    said: int
    started: float
    edition: int
    is_ready: bool = False

    def listen(self) -> None:
        with suppress(BlockingIOError):
            self.is_ready = self.is_ready or os.read(self.said, 1) == b"r"

    def take(self, edition: int) -> None:
        """Has it re-read the config, unless it has that already. Before it serves, SIGHUP would kill it."""
        if self.is_ready and self.edition != edition:
            self.edition = edition
            self.process.send_signal(signal.SIGHUP)


class WorkerPool:
    """`size` processes that each listen on the port of `sock`. `sock` itself only keeps the port: it never listens.

    Workers read a copy of the config under `home`, which is only ever a good one: a worker that is started after
    somebody broke the file still gets the config in force.
    """

    def __init__(
        self,
        config_path: Path,
        home: Path,
        sock: socket.socket,
        grpc_port: int,
        store_url: str,
        size: int,
    ) -> None:
        self._config_path, self._home = config_path, home
        self._kept = KeptFile(config_path, "serve")
        self._kept.lie_in(home)
        self._edition = 0
        self._host, self._port = sock.getsockname()[:2]
        self._grpc_port = grpc_port
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
        has_told = False
        try:
            self._workers = [self._start() for _ in range(self._size)]
            while not self._stopping.is_set():
                await self._tend()
                if not has_told and all(worker.is_ready for worker in self._workers):
                    has_told = True
                    on_ready()
                await self._pause(_LOOK_S)
        finally:
            await self._end_all()

    def _stop(self) -> None:
        if self._stopping.is_set():
            self._signal_all(signal.SIGTERM)
        self._stopping.set()

    def _reload(self) -> None:
        self._kept.take()
        self._edition += 1

    async def _tend(self) -> None:
        for index, worker in enumerate(self._workers):
            if worker.process.poll() is None:
                worker.listen()
                worker.take(self._edition)
            elif not self._stopping.is_set():
                await self._replace(index, worker)

    async def _replace(self, index: int, dead: _Worker) -> None:
        lived_s = asyncio.get_running_loop().time() - dead.started
        self._backoff_s = (
            _FIRST_BACKOFF_S if lived_s > _STABLE_S else min(self._backoff_s * 2, _MAX_BACKOFF_S)
        )
        pid, code = dead.process.pid, dead.process.returncode
        log.error("worker %d ended (%d); another starts in %.1f s", pid, code, self._backoff_s)
        await self._pause(self._backoff_s)
        os.close(dead.said)
        self._workers[index] = self._start()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _start(self) -> _Worker:
        said, say = os.pipe()
        os.set_blocking(said, False)
        ports = [str(self._port), str(self._grpc_port)]
        arguments = [
            str(self._config_path.absolute()),
            str(self._home),
            self._host,
            *ports,
            str(say),
            str(os.getpid()),
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy.worker", *arguments],
            pass_fds=[say],
            start_new_session=True,
            env={**os.environ, handover.STORE_URL: self._store_url},
        )
        os.close(say)
        return _Worker(process, said, asyncio.get_running_loop().time(), self._edition)

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
