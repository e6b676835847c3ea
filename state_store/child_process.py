"""Starts a command under a guard, and knows when it ended and when nothing of it is left.

It lives here because the embedded Redis needs it as engines do, and this package may import no other of ours.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from state_store import child_guard


@dataclass(frozen=True, slots=True)
class ChildExit:
    """How a command ended. `code` is negative for a signal, as in `subprocess`."""

    code: int
    peak_rss_bytes: int = 0
    is_guard_lost: bool = False
    """The guard was killed, and the kernel killed the command with it."""


class ChildProcess:
    """A running command whose descendants end with it, with us, and when asked to."""

    def __init__(
        self, guard: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self._guard = guard
        self._reader = reader
        self._writer = writer
        self._exit: asyncio.Future[ChildExit] = asyncio.get_running_loop().create_future()
        self.pid = 0
        """The command's own pid, which is also its session."""
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        log_path: Path | None = None,
        grace_s: float = 5.0,
    ) -> Self:
        """Returns once the command runs. Its output is appended to `log_path`; `env` replaces ours."""
        starting = asyncio.create_task(cls._start(argv, env, log_path, grace_s))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Half started, it would be nobody's to end.
            await (await starting).stop()
            raise

    @classmethod
    async def _start(
        cls, argv: Sequence[str], env: Mapping[str, str] | None, log_path: Path | None, grace_s: float
    ) -> Self:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                guard = _spawn(argv, env, log_path, grace_s, theirs)
        except BaseException:
            ours.close()
            raise
        child = cls(guard, *await asyncio.open_connection(sock=ours))
        first = await child._reader.readline()
        child.pid = int(first.split()[1]) if first else 0
        child._listening = asyncio.create_task(child._listen(), name=f"child {child.pid}")
        return child

    @property
    def guard_pid(self) -> int:
        return self._guard.pid

    @property
    def has_exited(self) -> bool:
        return self._exit.done()

    async def exited(self) -> ChildExit:
        """As soon as the command itself has ended; descendants of it may still be ending."""
        return await asyncio.shield(self._exit)

    async def gone(self) -> ChildExit:
        """When the command and every descendant of it have ended, and their memory and ports are free."""
        assert self._listening is not None
        await asyncio.shield(self._listening)
        return self._exit.result()

    async def stop(self) -> ChildExit:
        """SIGTERM to all, SIGKILL after the grace; returns when none is left. Fine when it has ended."""
        if self._writer.can_write_eof() and not self._writer.is_closing():
            with suppress(OSError):
                self._writer.write_eof()
        return await self.gone()

    async def _listen(self) -> None:
        with suppress(ConnectionError):
            async for line in self._reader:
                self._note(line)
        self._writer.close()
        await asyncio.to_thread(self._guard.wait)
        if not self._exit.done():
            await self._sweep()
            self._exit.set_result(ChildExit(-signal.SIGKILL, is_guard_lost=True))

    def _note(self, line: bytes) -> None:
        word, *numbers = line.split()
        if word == b"exited":
            status, rss_kib = int(numbers[0]), int(numbers[1])
            self._exit.set_result(ChildExit(os.waitstatus_to_exitcode(status), rss_kib * 1024))

    async def _sweep(self) -> None:
        while self.pid and child_guard.kill_session(self.pid):  # noqa: ASYNC110 - the process table sends no events
            await asyncio.sleep(0.03)


def _spawn(
    argv: Sequence[str],
    env: Mapping[str, str] | None,
    log_path: Path | None,
    grace_s: float,
    link: socket.socket,
) -> subprocess.Popen[bytes]:
    # Not asyncio's own subprocess: its watchers depend on the loop's make and thread, and the link says all
    # they would.
    with (log_path or Path(os.devnull)).open("ab") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", child_guard.__file__),
                *(str(link.fileno()), str(os.getpid()), str(grace_s)),
                *argv,
            ],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[link.fileno()],
            start_new_session=True,
        )
