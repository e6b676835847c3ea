"""Notices at once when a process below an engine's own ends: those that compute behind the one that answers."""

import asyncio
import os
from contextlib import suppress

from state_store.child_guard import descendants

# Python's own helper beside every user of shared memory; its end harms nobody.
_HARMLESS = b"resource_tracker"


class DescendantWatch:
    """Watches what runs below `ancestor` now; `ended` resolves to the name of the first that ends."""

    def __init__(self, ancestor: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._fds: list[int] = []
        self.ended: asyncio.Future[str] = self._loop.create_future()
        for pid in descendants(ancestor):
            if _HARMLESS not in (command := _command_line(pid)):
                self._watch(pid, command)

    def close(self) -> None:
        for fd in self._fds:
            self._loop.remove_reader(fd)
            os.close(fd)
        self._fds.clear()
        self.ended.cancel()

    def _watch(self, pid: int, command: bytes) -> None:
        # Gone already, or a kernel without pidfds: the slower checks find it.
        with suppress(OSError):
            fd = os.pidfd_open(pid)
            self._fds.append(fd)
            name = command.split(b"\0")[0].decode(errors="replace") or str(pid)
            self._loop.add_reader(fd, self._note, name)

    def _note(self, name: str) -> None:
        if not self.ended.done():
            self.ended.set_result(name)


def _command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
