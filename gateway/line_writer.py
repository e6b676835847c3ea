"""Writes lines to a file descriptor from a thread of its own, so that a full disk or a stuck pipe holds nobody up.

What waits is bounded: beyond that, lines are dropped and counted.
"""

import logging
import os
from collections.abc import Callable
from select import PIPE_BUF
from typing import Any

from gateway.backlog import Backlog

LOOK_S = 0.1
WAITING = 10_000
CLOSE_S = 1.0
"""How long the end of a process waits for lines that still stand in the queue."""

Encode = Callable[[Any], bytes]


class LineWriter(Backlog[tuple[Encode, Any]]):
    """Takes what lines are made of, and makes and writes them later."""

    def __init__(self, fd: int, waiting: int = WAITING) -> None:
        super().__init__("log lines", LOOK_S, waiting)
        self._fd = fd

    def take(self, encode: Encode, item: Any) -> None:
        """One line: `encode(item)`. Called from any thread; never waits."""
        self.put((encode, item))

    def put_bytes(self, lines: bytes) -> None:
        """Whole lines, made already."""
        self.take(_as_it_is, lines)

    def stop(self, within_s: float = CLOSE_S) -> None:
        super().stop(within_s)

    def _work_off(self) -> None:
        """Whole lines together, as many as a pipe takes in one piece beside those of other processes."""
        batch: list[bytes] = []
        size = 0
        while self._waiting:
            line = self._encoded(*self._waiting.popleft())
            if size + len(line) > PIPE_BUF:
                self._write(batch)
                batch, size = [], 0
            batch.append(line)
            size += len(line)
        self._write(batch)

    def _encoded(self, encode: Encode, item: Any) -> bytes:
        try:
            return encode(item)
        except Exception:  # a line that can't be made must not end all others
            self.dropped += 1
            return b""

    def _write(self, lines: list[bytes]) -> None:
        data = b"".join(lines)
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            # A full disk, or nobody who reads.
            self.dropped += len(lines)


class LineHandler(logging.Handler):
    """Gives the records of Python's own logging to a writer."""

    def __init__(self, writer: LineWriter, encode: Encode) -> None:
        super().__init__()
        self._writer, self._encode = writer, encode

    def emit(self, record: logging.LogRecord) -> None:
        # Made at once: what its arguments name may change until it is written.
        self._writer.put_bytes(self._encode(record))

    def close(self) -> None:
        self._writer.stop()
        super().close()


def _as_it_is(line: bytes) -> bytes:
    return line
