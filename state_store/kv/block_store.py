"""KV blocks in a Redis: which are there, fetch, store, count. Never waits longer than it says, never needed to serve.

Thread-safe: each call has a connection to itself. After a failure no call is made for a while; after a refusal (full,
read-only) nothing is written for a while.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from state_store.guarded import StoreBreaker
from state_store.kv.block_format import HEAD_BYTES, BlockId
from state_store.kv.budget import Budget, Use, command
from state_store.kv.master import connect_to_master
from state_store.kv.resp import Argument, Connection, ConnectionFailed, Reply, ServerError
from state_store.kv.turn import STORED, TURN_TTL_S, WRITING, turn_key
from state_store.redis_url import parse_redis_url

_CONTROL_TIMEOUT_S = 0.08
_DATA_TIMEOUT_S = 0.25
"""Of one block: what moves data holds nobody up but the request that it is for."""
_WINDOW_BYTES = 4_000_000
"""How much is on its way at once on a connection: enough to keep a link busy; more makes Redis pile up copies."""


class BlocksUnavailable(Exception):  # noqa: N818 - a condition that callers plan for
    """Redis did not answer in time, refused, or has not been tried again yet. What was asked for is a miss."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A block to store: where, its head, its bytes."""

    block: BlockId
    head: bytes
    payload: memoryview

    @property
    def size_bytes(self) -> int:
        return HEAD_BYTES + len(self.payload)


class BlockStore:
    """Blocks at one Redis address. Opens no connection before the first call; raises ValueError for a Cluster's URL."""

    def __init__(
        self,
        url: str,
        budget: Budget,
        *,
        control_timeout_s: float = _CONTROL_TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._url = parse_redis_url(url)
        if self._url.kind == "cluster":
            raise ValueError("KV blocks can't be kept in a Redis Cluster yet")
        self._budget = budget
        self._control_timeout_s = control_timeout_s
        self._now, self._wall = now, wall
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_closed = False
        self._breaker, self._writes = StoreBreaker(), StoreBreaker()
        self.failures = 0
        self.last_error = ""

    @property
    def is_available(self) -> bool:
        """Whether the last call that was made went well."""
        return self._breaker.state == "closed"

    def exist(self, blocks: Sequence[BlockId]) -> list[bool]:
        """Which of `blocks` are there, by name only: whether they are good shows when they are fetched."""
        with self._connection(self._control_timeout_s) as connection:
            return [reply == 1 for reply in connection.ask([[b"EXISTS", block.key] for block in blocks])]

    def fetch(
        self, blocks: Sequence[BlockId], places: Sequence[memoryview], deadline: float
    ) -> Iterator[int | None]:
        """Reads each block's value into its place, one by one: its size, or None for one that is not there.

        A place is filled when its size is yielded, and may be used again after that. `deadline` is monotonic. Raises
        BlocksUnavailable in the middle when the server fails: the rest are misses.
        """
        patience_s = min(_DATA_TIMEOUT_S, max(0.001, deadline - self._now()))
        with self._connection(patience_s) as connection:
            window = max(1, _WINDOW_BYTES // len(places[0]))
            connection.send([[b"GET", block.key] for block in blocks[:window]])
            for number, place in enumerate(places):
                if self._now() > deadline:
                    raise ConnectionFailed("the load took too long")
                size = connection.value_into(place)
                if number + window < len(blocks):
                    connection.send([[b"GET", blocks[number + window].key]])
                yield size

    def store(self, outgoing: Sequence[Outgoing]) -> list[bool]:
        """Writes what is not there yet; which were written now. Raises BlocksUnavailable when Redis takes nothing."""
        if not outgoing:
            return []
        ticket = self._admit(self._writes)
        replies: list[Reply] = []
        with self._connection(_DATA_TIMEOUT_S) as connection:
            window = max(1, _WINDOW_BYTES // outgoing[0].size_bytes)
            for first in range(0, len(outgoing), window):
                replies += connection.ask([self._set(out) for out in outgoing[first : first + window]])
                if isinstance(replies[-1], ServerError):
                    break
        refused = next((reply for reply in replies if isinstance(reply, ServerError)), None)
        if refused is not None:
            self._note_failure(self._writes, ticket, str(refused))
            raise BlocksUnavailable(str(refused))
        self._succeed(self._writes, ticket)
        return [reply == b"OK" for reply in replies]

    def discard(self, blocks: Sequence[BlockId]) -> None:
        """Deletes blocks that are no good, so that they can be written again."""
        with self._connection(self._control_timeout_s) as connection:
            connection.ask([[b"UNLINK", block.key] for block in blocks])

    def count(self, uses: list[Use]) -> int:
        """Tells the budget of blocks that were written or used, and deletes what has to go: how many."""
        if not uses:
            return 0
        with self._connection(self._control_timeout_s) as connection:
            expiry = str(self._budget.expiry_s).encode()
            touches: list[list[Argument]] = [[b"EXPIRE", use.key, expiry] for use in uses]
            gone = connection.ask([*touches, list(command(uses, self._budget, self._wall()))])[-1]
            if isinstance(gone, ServerError):
                raise BlocksUnavailable(str(gone))
            keys = [key for key in gone if isinstance(key, bytes)] if isinstance(gone, list) else []
            if keys:
                connection.ask([[b"UNLINK", key] for key in keys])
            return len(keys)

    def acknowledge(self, turn: str, timeout_s: float) -> None:
        """Says that all that was written before belongs to a turn that is now stored, on the URL's `wait_replicas`, too.

        Replication is one stream: once `WAIT` has this connection's write on a replica, all earlier ones are there.
        """
        expiry = str(int(TURN_TTL_S)).encode()
        with self._connection(timeout_s + self._control_timeout_s) as connection:
            acked: Reply = 0
            copies = self._url.wait_replicas
            if copies:
                mark: list[Argument] = [b"SET", turn_key(turn), WRITING, b"EX", expiry]
                acked = connection.ask(
                    [mark, [b"WAIT", str(copies).encode(), str(int(timeout_s * 1000)).encode()]]
                )[1]
            if not isinstance(acked, int) or acked < copies:
                raise BlocksUnavailable(f"{acked!r} of {copies} replicas of Redis have it")
            connection.ask([[b"SET", turn_key(turn), STORED, b"EX", expiry]])

    def close(self) -> None:
        """Calls under way still end; nothing stays open after them."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _set(self, out: Outgoing) -> list[Argument]:
        return [
            b"SET",
            out.block.key,
            (out.head, out.payload),
            b"NX",
            b"EX",
            str(self._budget.expiry_s).encode(),
        ]

    @contextmanager
    def _connection(self, timeout_s: float) -> Iterator[Connection]:
        """A connection that goes back when all its replies were read, and is closed when they were not."""
        ticket = self._admit(self._breaker)
        connection: Connection | None = None
        is_clean = False
        try:
            connection = self._take() or connect_to_master(self._url, self._control_timeout_s)
            connection.patience(timeout_s)
            yield connection
            is_clean = True
        except ConnectionFailed as error:
            self._note_failure(self._breaker, ticket, str(error))
            raise BlocksUnavailable(str(error)) from error
        finally:
            if connection is not None and not is_clean:
                connection.close()
        self._succeed(self._breaker, ticket)
        with self._lock:
            if not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def _take(self) -> Connection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _admit(self, breaker: StoreBreaker) -> int:
        with self._lock:
            ticket = breaker.admit(self._now())
        if ticket is None:
            raise BlocksUnavailable(f"not tried again yet: {self.last_error}")
        return ticket

    def _succeed(self, breaker: StoreBreaker, ticket: int) -> None:
        with self._lock:
            breaker.succeed(ticket)

    def _note_failure(self, breaker: StoreBreaker, ticket: int, error: str) -> None:
        with self._lock:
            self.failures += 1
            self.last_error = error
            breaker.fail(ticket, self._now())
            stale, self._idle = self._idle, []
        for connection in stale:
            connection.close()
