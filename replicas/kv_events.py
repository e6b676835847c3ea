"""vLLM's own word on what its prefix cache holds: the events that it publishes over ZeroMQ, as they stand in vLLM 0.32.

A message has three parts: topic, sequence number (8 bytes, big-endian) and a batch in msgpack. Fields that are not
needed here are not named, so that those of other versions do no harm.

Whoever subscribes misses what is published until the engine has heard of it, and the engine lets go of what a slow
subscriber does not take. So it is asked for what it has kept: at first, where a number is left out, and now and then, as
nobody sees that the last one was lost. It answers at a second endpoint, one message each and then one with number -1.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import msgspec
import zmq
import zmq.asyncio

from replicas.event_order import EventOrder, Missed

__all__ = [
    "AllBlocksCleared",
    "BlockRemoved",
    "BlockStored",
    "Event",
    "Hash",
    "KvEvents",
    "Missed",
    "replay_of",
]

Hash = bytes | int

_ASK_AGAIN_S, _ASK_AT_LEAST_EVERY_S = 0.5, 16.0
"""After the first time, and then ever less often."""
_REPLAY_WITHIN_S = 2.0
_LOOK_S, _CONNECT_S = 1.0, 0.1
"""How long it waits for messages at a time: at most, and where the engine can't be asked yet."""
_OVER = (-1).to_bytes(8, "big", signed=True)


def replay_of(endpoint: str) -> str:
    """Where an engine that publishes at `endpoint` is asked for what it has kept."""
    return f"{endpoint}-replay"


class BlockStored(msgspec.Struct, tag=True):
    """Blocks of a prompt or an answer that are in the cache now, in order."""

    block_hashes: list[Hash]
    token_ids: list[int]
    block_size: int
    parent_block_hash: Hash | None = None
    lora_name: str | None = None
    medium: str | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    """Blocks that are not."""

    block_hashes: list[Hash]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """The cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Event]


_DECODE = msgspec.msgpack.Decoder(_Batch).decode


class KvEvents:
    """Follows the events of one engine, at the ZeroMQ endpoint that it binds."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._context = zmq.asyncio.Context()
        self._following: _Following | None = None

    async def batches(self) -> AsyncIterator[list[Event]]:
        """For ever, from the first that the engine still has; what is none of vLLM's events is left out.

        Raises:
            Missed: some were lost for good; it may be iterated anew.
        """
        following = self._following = _Following(self._context, self._endpoint)
        try:
            while True:
                for message in await following.next_messages():
                    try:
                        yield _DECODE(message).events
                    except msgspec.MsgspecError:
                        continue
        finally:
            following.close()

    def begin(self) -> None:
        """A new engine starts, whose numbers begin anew."""
        if self._following is not None:
            self._following.begin()

    def close(self) -> None:
        """Ends it."""
        self._context.destroy(linger=0)


class _Following:
    """A subscription, and the socket at which what it lacks is asked for."""

    def __init__(self, context: zmq.asyncio.Context, endpoint: str) -> None:
        self._time = asyncio.get_running_loop().time
        self._live, self._replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self._live.setsockopt(zmq.SUBSCRIBE, b"")
        # Questions to an engine that is not there yet do not pile up.
        self._replay.setsockopt(zmq.IMMEDIATE, 1)
        self._poller = zmq.asyncio.Poller()
        for socket, at in ((self._live, endpoint), (self._replay, replay_of(endpoint))):
            socket.connect(at)
            self._poller.register(socket, zmq.POLLIN)
        self.begin()

    def begin(self) -> None:
        """Nothing was heard of the engine yet."""
        self._order = EventOrder()
        self._is_asked = False
        self._ask_at, self._ask_every_s, self._give_up_at = self._time(), _ASK_AGAIN_S, 0.0

    async def next_messages(self) -> list[bytes]:
        """Those that are due after waiting for a while: perhaps none. Raises Missed."""
        await self._ask_if_due()
        ready = dict(await self._poller.poll(round(self._patience_s() * 1000)))
        due: list[bytes] = []
        if self._replay in ready:
            async for parts in _all_of(self._replay):
                due += self._replayed(*parts[-2:])
        if self._live in ready:
            async for parts in _all_of(self._live):
                due += self._order.live(int.from_bytes(parts[-2], "big"), parts[-1])
        if self._order.is_asking and self._time() >= self._give_up_at:
            due += self._order.over()
        return due

    def close(self) -> None:
        self._live.close(linger=0)
        self._replay.close(linger=0)

    def _replayed(self, number: bytes, message: bytes) -> Iterator[bytes]:
        """What is due once this answer to a question has come: a message, or the word that there are no more."""
        if number != _OVER:
            self._give_up_at = self._time() + _REPLAY_WITHIN_S
            yield from self._order.again(int.from_bytes(number, "big"), message)
            return
        self._ask_at = self._time() + self._ask_every_s
        self._ask_every_s = min(2 * self._ask_every_s, _ASK_AT_LEAST_EVERY_S)
        yield from self._order.over()

    async def _ask_if_due(self) -> None:
        now = self._time()
        if not self._order.is_asking and (self._order.lacks or now >= self._ask_at):
            self._order.ask()
            self._is_asked, self._give_up_at = False, now + _REPLAY_WITHIN_S
        if self._order.is_asking and not self._is_asked:
            self._is_asked = await self._ask()

    async def _ask(self) -> bool:
        first = self._order.expected.to_bytes(8, "big")
        try:
            await self._replay.send_multipart((b"", first), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _patience_s(self) -> float:
        if not self._order.is_asking:
            return min(_LOOK_S, max(0.0, self._ask_at - self._time()))
        return _LOOK_S if self._is_asked else _CONNECT_S


async def _all_of(socket: "zmq.asyncio.Socket") -> AsyncIterator[list[bytes]]:
    """The messages that have come."""
    while await socket.poll(0):
        yield await socket.recv_multipart()
