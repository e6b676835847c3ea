"""vLLM's own word on what its prefix cache holds: the events that it publishes over ZeroMQ, as they stand in vLLM 0.32.

A message has three parts: topic, sequence number (8 bytes, big-endian) and a batch in msgpack. Fields that are not
needed here are not named, so that those of other versions do no harm.
"""

from collections.abc import AsyncIterator

import msgspec
import zmq
import zmq.asyncio

Hash = bytes | int


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


class Missed(Exception):  # noqa: N818
    """Events were lost on the way, so nobody knows any more what the cache holds."""


_DECODE = msgspec.msgpack.Decoder(_Batch).decode


class KvEvents:
    """Follows the events of one engine, at the ZeroMQ endpoint that it binds."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._context = zmq.asyncio.Context()

    async def batches(self) -> AsyncIterator[list[Event]]:
        """For ever; what is none of vLLM's events is left out.

        Raises:
            Missed: a sequence number is not the next one; it may be iterated anew.
        """
        socket = self._context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            socket.connect(self._endpoint)
            expected = 0
            while True:
                *_, sequence, payload = await socket.recv_multipart()
                number = int.from_bytes(sequence, "big")
                # The first one may be any: who subscribes late has missed what was before.
                if expected and number != expected:
                    raise Missed(f"event {expected} came as {number}")
                expected = number + 1
                try:
                    yield _DECODE(payload).events
                except msgspec.MsgspecError:
                    continue
        finally:
            socket.close(linger=0)

    def close(self) -> None:
        """Ends it."""
        self._context.destroy(linger=0)
