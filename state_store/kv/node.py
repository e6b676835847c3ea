"""One Redis server that has blocks: its connections, and when it is left alone."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from state_store.guarded import StoreBreaker
from state_store.kv.resp import Connection, ConnectionFailed

Connect = Callable[[float], Connection]
"""Opens a connection within so many seconds. Raises ConnectionFailed."""


Told = Callable[[str], None]
"""Is told why a server that was well is not, and with an empty word that it is again."""


def tell_nobody(_: str) -> None:
    """Where nobody wants to know."""


class BlocksUnavailable(Exception):  # noqa: N818 - a condition that callers plan for
    """Redis did not answer in time, refused, or has not been tried again yet. What was asked for is a miss."""


class Node:
    """Thread-safe: whoever talks to it has a connection to himself. After a failure nobody does for a while; after a
    refusal (full, read-only) nobody writes for a while.
    """

    def __init__(
        self,
        connect: Connect,
        connect_timeout_s: float,
        now: Callable[[], float] = time.monotonic,
        told: Told = tell_nobody,
    ) -> None:
        self._connect, self._connect_timeout_s, self._now, self._told = connect, connect_timeout_s, now, told
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_closed = False
        self._breaker, self._writes = StoreBreaker(), StoreBreaker()
        self._last_error = ""

    @property
    def is_available(self) -> bool:
        """Whether the last call that was made went well."""
        return self._breaker.state == "closed"

    @contextmanager
    def connection(self, timeout_s: float, until: float = math.inf) -> Iterator[Connection]:
        """A connection that waits for more for `timeout_s` at most, and reads nothing after `until`, which is monotonic.
        It is kept if all its replies were read.

        Raises BlocksUnavailable, also in place of a ConnectionFailed within the context.
        """
        ticket = self._admit(self._breaker)
        connection: Connection | None = None
        is_clean = False
        try:
            connection = self._take() or self._connect(self._connect_timeout_s)
            connection.patience(timeout_s, until)
            yield connection
            is_clean = True
        except ConnectionFailed as error:
            self._note_failure(self._breaker, ticket, str(error))
            raise BlocksUnavailable(str(error)) from error
        finally:
            if connection is not None and not is_clean:
                connection.close()
        self._succeed(self._breaker, ticket)
        self._give_back(connection)

    @contextmanager
    def writing(self) -> Iterator[Callable[[str], None]]:
        """Around writes. What it gives is called with the server's word when it refuses one, and raises
        BlocksUnavailable; so does entering it soon after that.
        """
        ticket = self._admit(self._writes)

        def refused(why: str) -> None:
            self._note_failure(self._writes, ticket, why)
            raise BlocksUnavailable(why)

        yield refused
        self._succeed(self._writes, ticket)

    def close(self) -> None:
        """Calls under way still end; nothing stays open after them."""
        with self._lock:
            self._is_closed = True
        self._drop_idle()

    def _take(self) -> Connection | None:
        """An idle connection that still is one."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or connection.is_quiet:
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def _admit(self, breaker: StoreBreaker) -> int:
        with self._lock:
            ticket = breaker.admit(self._now())
        if ticket is None:
            raise BlocksUnavailable(f"not tried again yet: {self._last_error}")
        return ticket

    def _succeed(self, breaker: StoreBreaker, ticket: int) -> None:
        with self._lock:
            was_ill = breaker.state != "closed"
            breaker.succeed(ticket)
            is_back = was_ill and breaker.state == "closed"
        if is_back:
            self._told("")

    def _note_failure(self, breaker: StoreBreaker, ticket: int, error: str) -> None:
        with self._lock:
            self._last_error = error
            was_well = breaker.state == "closed"
            breaker.fail(ticket, self._now())
        if was_well:
            self._told(error)
        self._drop_idle()

    def _drop_idle(self) -> None:
        with self._lock:
            stale, self._idle = self._idle, []
        for connection in stale:
            connection.close()
