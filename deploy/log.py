"""A process's log: Python's own logging, in words or in JSON, to standard error, and never in anybody's way."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deploy import handover
from gateway.line_writer import LineHandler, LineWriter
from gateway.log_lines import json_line, text_line
from gateway.specs import LogSpec

LEVEL = "GRACEWAY_LOG"
"""The variable that overrides the config's level."""


def begin_log(spec: LogSpec, fd: int | None = None) -> LineWriter:
    """Sends what this process logs to `fd` (standard error by default) from now on, until it ends."""
    writer = LineWriter(sys.stderr.fileno() if fd is None else fd)
    writer.start()
    root = logging.getLogger()
    root.addHandler(LineHandler(writer, json_line if spec.format == "json" else text_line))
    root.setLevel(os.environ.get(LEVEL, spec.level).upper())
    logging.getLogger("uvicorn.error").setLevel("WARNING")
    return writer


def begin_log_of_system(spec: LogSpec) -> LineWriter | None:
    """The same for a process that Ray started under `graceway up`, which passes its lines on; None where it does not."""
    path = os.environ.get(handover.LOG_PIPE)
    if path is None:
        return None
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None
    os.set_blocking(fd, True)
    return begin_log(spec, fd)


class LogPipe:
    """The named pipe into which the processes of a system write their lines, and who passes them on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._transport: asyncio.BaseTransport | None = None

    async def open(self, take: Callable[[bytes], None]) -> None:
        """Gives what comes to `take`, in pieces that may end within a line."""
        os.mkfifo(self.path, 0o600)
        # Open for writing, too, or it would end with the first process that does.
        file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0)
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.connect_read_pipe(lambda: _Passing(take), file)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        with suppress(OSError):
            self.path.unlink()


class _Passing(asyncio.Protocol):
    """Passes whole lines on."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take, self._rest = take, b""

    def data_received(self, data: bytes) -> None:
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if newline:
            self._take(lines + newline)
