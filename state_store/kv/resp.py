"""One connection that speaks RESP2, for values of megabytes: read straight into the caller's memory, sent from it.

The rest of Graceway talks to Redis through redis-py, whose parser copies each value several times. This one reads a
value's head with a few bytes and the value itself with one call into the place where it is wanted.
"""

import math
import select
import socket
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Union

from state_store.kv.plain_socket import connect, is_local, set_timeout
from state_store.redis_url import Server

Argument = bytes | memoryview | tuple[bytes, memoryview]
"""A pair is one argument that lies in two places."""
Reply = Union[bytes, int, None, list["Reply"], "ServerError"]

_CRLF = b"\r\n"
_HEAD_BYTES = 64
_MOST_PARTS = 256
"""Buffers that one system call takes (IOV_MAX is 1024)."""
_AWAKE_S = 1e-3
"""How long a value's next bytes are looked for, on the server's own machine, before the reader sleeps till they come."""


class ConnectionFailed(Exception):  # noqa: N818 - a condition that callers plan for
    """The server can't be reached, did not answer in time or spoke no RESP. The connection is of no more use."""


class ServerError(Exception):
    """The server's own `-ERR …`. The connection is fine."""


class Connection:
    """A connected, authenticated socket. Commands may be sent ahead; replies are read in their order.

    Raises ConnectionFailed from every method.
    """

    def __init__(self, server: Server, login: Mapping[str, Any], timeout_s: float) -> None:
        self._timeout_s, self._until = timeout_s, math.inf
        try:
            self._socket = connect(server, login, timeout_s)
        except OSError as error:
            raise ConnectionFailed(str(error)) from error
        self._has_vectors = not login.get("ssl")
        self._flags = socket.MSG_WAITALL if self._has_vectors else 0
        self._stays_awake = self._has_vectors and is_local(self._socket)
        self._ahead = bytearray(_HEAD_BYTES)
        self._begin = self._end = 0
        try:
            self._log_in(login)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def is_quiet(self) -> bool:
        """Whether, with no answer due, the server says nothing: it has not hung up, as one does on who idles."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def patience(self, timeout_s: float, until: float = math.inf) -> None:
        """How long each of the following reads and writes may wait for more, and when, monotonic, no more is read.

        Without `until`, whoever sends a little now and then is read from for as long as that takes.
        """
        self._until = until
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            set_timeout(self._socket, timeout_s)

    def send(self, commands: Sequence[Sequence[Argument]]) -> None:
        """Sends commands in one go, values from where they lie."""
        parts: list[bytes | memoryview] = []
        for command in commands:
            _encode(command, parts)
        self._send_all(parts)

    def ask(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """Sends commands and returns their replies, errors among them."""
        self.send(commands)
        return [self.reply() for _ in commands]

    def reply(self) -> Reply:
        """The next reply, whatever it is."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return ServerError(rest.decode("utf-8", "replace"))
        count = _number(line)
        if kind == b":":
            return count
        if kind == b"$":
            return None if count < 0 else self._bulk(count)
        if kind == b"*":
            return None if count < 0 else [self.reply() for _ in range(count)]
        raise ConnectionFailed(f"no RESP: {line[:40]!r}")

    def value_into(self, place: memoryview) -> int | None:
        """Reads the next reply, a value, into `place`: its size, or None where there is none.

        A value that does not fit is read past and given the size that it has; so is one that is an error, as None.
        """
        line = self._line(awake=self._stays_awake)
        if line[:1] == b"-":
            return None
        if line[:1] != b"$":
            raise ConnectionFailed(f"no value: {line[:40]!r}")
        size = _number(line)
        if size < 0:
            return None
        if size > len(place):
            self._skip(size + len(_CRLF))
            return size
        self._fill(place[:size])
        self._skip(len(_CRLF))
        return size

    def _log_in(self, login: Mapping[str, Any]) -> None:
        commands: list[list[bytes]] = []
        if password := login.get("password"):
            names = [login["username"].encode()] if login.get("username") else []
            commands.append([b"AUTH", *names, password.encode()])
        if db := login.get("db"):
            commands.append([b"SELECT", str(db).encode()])
        for answer in self.ask(commands):
            if isinstance(answer, ServerError):
                raise ConnectionFailed(str(answer))

    def _send_all(self, parts: list[bytes | memoryview]) -> None:
        try:
            if self._has_vectors:
                self._send_vectors(parts)
            else:
                for part in parts:
                    self._socket.sendall(part)
        except OSError as error:
            raise ConnectionFailed(f"sending: {error or 'too slow'}") from error

    def _send_vectors(self, parts: list[bytes | memoryview]) -> None:
        first = 0
        while first < len(parts):
            sent = self._socket.sendmsg(parts[first : first + _MOST_PARTS])
            while first < len(parts) and sent >= len(parts[first]):
                sent -= len(parts[first])
                first += 1
            if sent:
                parts[first] = memoryview(parts[first])[sent:]

    def _line(self, *, awake: bool = False) -> bytes:
        while (at := self._ahead.find(_CRLF, self._begin, self._end)) < 0:
            if self._begin:
                self._ahead[: self._end - self._begin] = self._ahead[self._begin : self._end]
                self._begin, self._end = 0, self._end - self._begin
            if self._end == len(self._ahead):
                self._ahead.extend(bytes(len(self._ahead)))
            self._end += self._read_some(memoryview(self._ahead)[self._end :], awake=awake)
        line = bytes(self._ahead[self._begin : at])
        self._begin = at + len(_CRLF)
        return line

    def _bulk(self, size: int) -> bytes:
        value = bytearray(size)
        self._fill(memoryview(value))
        self._skip(len(_CRLF))
        return bytes(value)

    def _fill(self, place: memoryview) -> None:
        """Fills `place` with what was read ahead, and then straight from the socket."""
        ready = min(len(place), self._end - self._begin)
        place[:ready] = self._ahead[self._begin : self._begin + ready]
        self._begin += ready
        while ready < len(place):
            ready += self._read_some(place[ready:], self._flags, awake=self._stays_awake)

    def _skip(self, size: int) -> None:
        ready = min(size, self._end - self._begin)
        self._begin += ready
        size -= ready
        waste = bytearray(min(size, 1 << 16))
        while size:
            size -= self._read_some(memoryview(waste)[: min(size, len(waste))])

    def _read_some(self, place: memoryview, flags: int = 0, *, awake: bool = False) -> int:
        if time.monotonic() > self._until:
            raise ConnectionFailed("what is asked for does not come whole in time")
        try:
            count = self._next_awake(place) if awake else None
            if count is None:
                count = self._socket.recv_into(place, len(place), flags)
        except OSError as error:
            raise ConnectionFailed(f"no answer within {self._timeout_s * 1000:.0f} ms ({error})") from error
        if not count:
            raise ConnectionFailed("the server closed the connection")
        return count

    def _next_awake(self, place: memoryview) -> int | None:
        """The bytes that come next, without sleeping until they do; None if they don't come soon.

        Who sends on the same machine has to wake who sleeps, once for each piece that fits into the socket, and that is
        a fifth of what sending costs. Looking for them takes as much CPU in all, and two thirds of the time.
        """
        until_s = time.perf_counter() + _AWAKE_S
        while time.perf_counter() < until_s:
            try:
                return self._socket.recv_into(place, len(place), socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
        return None


def _number(line: bytes) -> int:
    try:
        return int(line[1:])
    except ValueError:
        raise ConnectionFailed(f"no RESP: {line[:40]!r}") from None


def _encode(command: Sequence[Argument], parts: list[bytes | memoryview]) -> None:
    """Appends a command's bytes; small arguments are joined, large ones go in as they are."""
    head = bytearray(b"*%d\r\n" % len(command))
    for argument in command:
        begin, large = argument if isinstance(argument, tuple) else (argument, b"")
        if isinstance(begin, memoryview):
            begin, large = b"", begin
        head += b"$%d\r\n" % (len(begin) + len(large))
        head += begin
        if large:
            parts += (bytes(head), large)
            head = bytearray()
        head += _CRLF
    parts.append(bytes(head))
