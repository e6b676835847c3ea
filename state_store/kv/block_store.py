"""KV blocks in Redis: which are there, fetch, store, count. Never waits longer than it says, never needed to serve.

Thread-safe. In a Cluster each block is on the node that has its slot.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from state_store.kv.block_format import HEAD_BYTES, BlockId
from state_store.kv.budget import Budget, Use, command
from state_store.kv.node import BlocksUnavailable, Node, Told, tell_nobody
from state_store.kv.nodes import nodes_of
from state_store.kv.resp import Argument, ConnectionFailed, Reply, ServerError
from state_store.kv.turn import STORED, TURN_TTL_S, turn_key
from state_store.redis_url import parse_redis_url

__all__ = ["BlockStore", "BlocksUnavailable", "Outgoing"]

_CONTROL_TIMEOUT_S = 0.08
_DATA_TIMEOUT_S = 0.25
"""Of one block: what moves data holds nobody up but the request that it is for."""
_DATA_SHARE, _DATA_MOST_S = 0.2, 0.4
"""Of the time that a load has, that it waits for one block: where much is at stake, a busy machine is waited for."""
_STORE_TIMEOUT_S = 1.0
"""Of what is written, a block or a word about it: nobody waits, and what a busy machine keeps Redis from taking is lost."""
_WAIT_S = 0.2
"""For Redis's own replicas."""
_WINDOW_BYTES = 4_000_000
"""How much is on its way at once on a connection: enough to keep a link busy; more makes Redis pile up copies."""


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
    """Blocks at one Redis URL. Opens no connection before the first call; raises ValueError for a URL that is none."""

    def __init__(
        self,
        url: str,
        budget: Budget,
        *,
        control_timeout_s: float = _CONTROL_TIMEOUT_S,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        told: Told = tell_nobody,
    ) -> None:
        at = parse_redis_url(url)
        self._nodes = nodes_of(at, control_timeout_s, now, told)
        self._copies = at.wait_replicas
        self._budget, self._control_timeout_s = budget, control_timeout_s
        self._now, self._wall = now, wall

    @property
    def is_available(self) -> bool:
        """Whether the last call to each server went well."""
        return self._nodes.is_available

    def exist(self, blocks: Sequence[BlockId], within_s: float = 0.0) -> list[bool]:
        """Which of `blocks` are there, by name only: whether they are good shows when they are fetched.

        Each server has `within_s` to answer, or the time that any small question has where that is more.
        """
        found = [False] * len(blocks)
        patience_s = max(self._control_timeout_s, within_s)
        for node, places in self._by_node([block.key for block in blocks]):
            until = self._now() + self._control_timeout_s + patience_s
            with node.connection(patience_s, until) as connection:
                replies = connection.ask([[b"EXISTS", blocks[at].key] for at in places])
                for at, reply in zip(places, replies, strict=True):
                    found[at] = self._seen(reply) == 1
                    if isinstance(reply, ServerError) and not _has_moved(reply):
                        # Who may not ask, or is told that Redis still loads, knows nothing of its blocks.
                        raise ConnectionFailed(str(reply))
        return found

    def fetch(
        self, blocks: Sequence[BlockId], places: Sequence[memoryview], deadline: float
    ) -> Iterator[int | None]:
        """Reads each block's value into its place, one by one: its size, or None for one that is not there.

        A place is filled when its size is yielded, and may be used again after that. `deadline` is monotonic. Raises
        BlocksUnavailable in the middle when a server fails: the rest are misses.
        """
        streams: dict[int, Iterator[int | None]] = {}
        for node, mine in self._by_node([block.key for block in blocks]):
            parts = [blocks[at] for at in mine], [places[at] for at in mine]
            streams |= dict.fromkeys(mine, self._fetch_from(node, *parts, deadline))
        for at in range(len(blocks)):
            yield next(streams[at])

    def store(self, outgoing: Sequence[Outgoing]) -> list[bool]:
        """Writes what is not there yet; which were written now. Raises BlocksUnavailable when Redis takes nothing."""
        written = [False] * len(outgoing)
        for node, mine in self._by_node([out.block.key for out in outgoing]):
            replies = self._store_at(node, [outgoing[at] for at in mine])
            for at, reply in zip(mine, replies, strict=True):
                written[at] = reply == b"OK"
        return written

    def discard(self, blocks: Sequence[BlockId]) -> None:
        """Deletes blocks that are no good, so that they can be written again."""
        self._delete([block.key for block in blocks])

    def count(self, uses: list[Use], *, must_be_copied: bool = False) -> set[bytes]:
        """Tells the budget of blocks that were written or used, and deletes what has to go: the keys of that.

        With `must_be_copied`, all that was written is on the URL's `wait_replicas` when it returns; raises
        BlocksUnavailable if it is not in time.
        """
        if not uses:
            return set()
        copies = self._copies if must_be_copied else 0
        for node, mine in self._by_node([use.key for use in uses]):
            self._touch(node, [uses[at] for at in mine], copies)
        gone = self._written(self._budget.used, list(command(uses, self._budget, self._wall())))
        keys = [key for key in gone if isinstance(key, bytes)] if isinstance(gone, list) else []
        self._delete(keys)
        return set(keys)

    def acknowledge(self, turn: str) -> None:
        """Says that all blocks of a turn are stored."""
        key = turn_key(turn)
        self._written(key, [b"SET", key, STORED, b"EX", b"%d" % int(TURN_TTL_S)])

    def close(self) -> None:
        """Calls under way still end; nothing stays open after them."""
        self._nodes.close()

    def _written(self, key: bytes, command: Sequence[Argument]) -> Reply:
        """Redis's answer to a command that writes. Raises BlocksUnavailable for a refusal."""
        node = self._nodes.of(key)
        with node.writing() as refused, node.connection(_STORE_TIMEOUT_S) as connection:
            reply = self._seen(connection.ask([command])[0])
            if isinstance(reply, ServerError):
                refused(str(reply))
        return reply

    def _by_node(self, keys: Sequence[bytes]) -> list[tuple[Node, list[int]]]:
        """The keys' positions, by the server that has them."""
        found: dict[Node, list[int]] = {}
        for at, key in enumerate(keys):
            found.setdefault(self._nodes.of(key), []).append(at)
        return list(found.items())

    def _fetch_from(
        self, node: Node, blocks: Sequence[BlockId], places: Sequence[memoryview], deadline: float
    ) -> Iterator[int | None]:
        left_s = max(0.001, deadline - self._now())
        patience_s = min(left_s, max(_DATA_TIMEOUT_S, min(_DATA_MOST_S, _DATA_SHARE * left_s)))
        with node.connection(patience_s, deadline) as connection:
            window = max(1, _WINDOW_BYTES // len(places[0]))
            connection.send([[b"GET", block.key] for block in blocks[:window]])
            for number, place in enumerate(places):
                if self._now() > deadline:
                    raise ConnectionFailed("the load took too long")
                size = connection.value_into(place)
                if number + window < len(blocks):
                    connection.send([[b"GET", blocks[number + window].key]])
                yield size

    def _store_at(self, node: Node, outgoing: Sequence[Outgoing]) -> list[Reply]:
        """Redis's answers to the writes. Raises BlocksUnavailable at the first refusal."""
        window = max(1, _WINDOW_BYTES // outgoing[0].size_bytes)
        replies: list[Reply] = []
        with node.writing() as refused, node.connection(_STORE_TIMEOUT_S) as connection:
            for number in range(len(outgoing) + window):
                if number < len(outgoing):
                    connection.send([self._set(outgoing[number])])
                if window <= number:
                    reply = self._seen(connection.reply())
                    if isinstance(reply, ServerError):
                        refused(str(reply))
                    replies.append(reply)
        return replies

    def _set(self, out: Outgoing) -> list[Argument]:
        expiry = b"%d" % self._budget.expiry_s(is_new=True)
        return [b"SET", out.block.key, (out.head, out.payload), b"NX", b"EX", expiry]

    def _touch(self, node: Node, uses: Sequence[Use], copies: int) -> None:
        """Has blocks live on; and waits until a server's replicas have that, and so all that was written before it."""
        with node.connection(_STORE_TIMEOUT_S) as connection:
            touches: list[list[Argument]] = [
                [b"EXPIRE", use.key, b"%d" % self._budget.expiry_s(is_new=use.is_new)] for use in uses
            ]
            if copies:
                touches.append([b"WAIT", b"%d" % copies, b"%d" % int(_WAIT_S * 1000)])
            acked = connection.ask(touches)[-1]
        if copies and (not isinstance(acked, int) or acked < copies):
            raise BlocksUnavailable(f"{acked!r} of {copies} replicas of Redis have it")

    def _delete(self, keys: Sequence[bytes]) -> None:
        for node, mine in self._by_node(keys):
            with node.connection(self._control_timeout_s) as connection:
                connection.ask([[b"UNLINK", keys[at]] for at in mine])

    def _seen(self, reply: Reply) -> Reply:
        """The same reply, after a look at whether it says that a Cluster has changed."""
        if isinstance(reply, ServerError) and _has_moved(reply):
            self._nodes.moved()
        return reply


def _has_moved(error: ServerError) -> bool:
    return str(error).startswith(("MOVED", "ASK", "CLUSTERDOWN"))
