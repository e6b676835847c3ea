"""The guard: a process between a supervisor and the command it runs, so that no descendant outlives the
supervisor.

Run as `python -I -S child_guard.py LINK_FD PARENT_PID GRACE_S COMMAND…`. It starts COMMAND in a session of
its own and adopts every descendant that loses its parent (as a Linux subreaper). It ends them all, SIGTERM
first and SIGKILL after GRACE_S, when its parent dies (even by SIGKILL) or shuts the link, when it gets
SIGTERM or SIGINT, and when COMMAND ends. Should the guard itself be killed, the kernel kills COMMAND.

Over the link, a socket, it reports `started PID` and `exited WAIT_STATUS PEAK_RSS_KIB`; its own exit status
is that of COMMAND, 128 + n for signal n. Only the standard library, and little of it: a guard starts in a few
hundredths of a second.
"""

import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, NoReturn

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_AGAIN_S = 0.03


class Process(NamedTuple):
    """One line of the process table."""

    pid: int
    parent: int
    session: int
    is_zombie: bool


def processes() -> Iterator[Process]:
    """The process table, from /proc."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    # The name, in parentheses, may itself hold blanks and parentheses.
                    state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
            except OSError:
                continue
            yield Process(int(entry), int(parent), int(session), state in b"ZX")


def descendants(ancestor: int) -> set[int]:
    """Pids of everything below `ancestor` that still runs."""
    children: dict[int, list[Process]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process)
    found: set[int] = set()
    unseen = [ancestor]
    while unseen:
        for process in children.get(unseen.pop(), ()):
            unseen.append(process.pid)
            if not process.is_zombie:
                found.add(process.pid)
    return found


def kill_session(session: int) -> set[int]:
    """SIGKILL to every process of a session; the pids that got it. For when its guard was killed."""
    victims = {p.pid for p in processes() if p.session == session and not p.is_zombie}
    for pid in victims:
        _signal(pid, signal.SIGKILL)
    return victims


class _Guard:
    """What one guard knows: its link, its command's pid, and how that ended."""

    def __init__(self, link: socket.socket, parent: int, grace_s: float) -> None:
        self._link = link
        self._parent = parent
        self._grace_s = grace_s
        self._command = 0
        self._status: int | None = None
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        self._stop = False

    def _on_signal(self, signum: int, _frame: object) -> None:
        self._stop = self._stop or signum != signal.SIGCHLD

    def run(self, command: list[str]) -> int:
        self._command = _start(command)
        self._report(f"started {self._command}")
        self._watch()
        self._end_descendants()
        return os.waitstatus_to_exitcode(self._status or 0)

    def _watch(self) -> None:
        poll = select.poll()
        for fd in (self._link.fileno(), self._woken, _parent_fd(self._parent)):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        while not self._stop and self._status is None:
            for fd, _ in poll.poll():
                if fd == self._woken:
                    os.read(fd, 4096)
                elif fd != self._link.fileno() or not self._link.recv(4096):
                    self._stop = True
            self._reap()

    def _end_descendants(self) -> None:
        deadline = time.monotonic() + self._grace_s
        told: set[int] = set()
        # Not done before every child has been waited for: one that looks dead may still hold memory and ports.
        while self._reap():
            left = descendants(os.getpid())
            is_late = time.monotonic() >= deadline
            for pid in left if is_late else left - told:
                _signal(pid, signal.SIGKILL if is_late else signal.SIGTERM)
            told |= left
            select.select([self._woken], [], [], _LOOK_AGAIN_S)
            self._drain_wakeups()

    def _drain_wakeups(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)

    def _reap(self) -> bool:
        """Takes note of what has ended; False when no child is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._command:
                self._status = status
                self._report(f"exited {status} {usage.ru_maxrss}")

    def _report(self, line: str) -> None:
        try:
            self._link.sendall(line.encode() + b"\n")
        except OSError:
            self._stop = True


def _start(command: list[str]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _become(command, guard)
        except BaseException as error:
            print(f"could not start {command[0]}: {error}", file=sys.stderr, flush=True)  # noqa: T201
            os._exit(127)
    return pid


def _become(command: list[str], guard: int) -> NoReturn:
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(128 + signal.SIGKILL)
    # Python ignores these two, and an ignored signal stays ignored across exec.
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    os.execvp(command[0], command)


def _parent_fd(parent: int) -> int | None:
    """Becomes readable when `parent` ends, whoever else may hold a copy of its end of the link."""
    try:
        fd = os.pidfd_open(parent)
    except OSError:
        # No such call on an old kernel, or the parent is gone: then the link says so.
        return None
    if os.getppid() == parent:
        return fd
    # Only a child can tell that the pid was not taken by somebody else; guards always are children.
    os.close(fd)
    return None


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def _signal(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def main(arguments: list[str]) -> int:
    """Runs the guard to its end and returns its exit status."""
    link = socket.socket(fileno=int(arguments[0]))
    link.set_inheritable(False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    code = _Guard(link, int(arguments[1]), float(arguments[2])).run(arguments[3:])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
