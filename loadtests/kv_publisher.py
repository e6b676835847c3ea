"""The simulated engine's events of what its prefix cache holds, as vLLM 0.32 publishes them over ZeroMQ."""

import time
from collections.abc import Sequence

import msgspec
import zmq


class BlockStored(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that are in the cache now."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, tag=True, omit_defaults=True):
    """Blocks that are not any more."""

    block_hashes: list[bytes]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, omit_defaults=True):
    """The cache is empty."""


class _Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class KvPublisher:
    """Publishes at an endpoint that it binds; a message a change."""

    def __init__(self, endpoint: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self._socket.bind(endpoint)
        self._sequence = 0

    def stored(self, names: Sequence[int], before: int | None, ids: list[int], block_tokens: int) -> None:
        """Blocks that follow each other, `before` them the one that is in front."""
        parent = None if before is None else _name(before)
        hashes = [_name(name) for name in names]
        self._send(BlockStored(hashes, parent, ids, block_tokens, None, "GPU", None))

    def removed(self, names: Sequence[int]) -> None:
        """Blocks that were evicted."""
        self._send(BlockRemoved([_name(name) for name in names], "GPU"))

    def cleared(self) -> None:
        """The cache was emptied."""
        self._send(AllBlocksCleared())

    def _send(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        batch = msgspec.msgpack.encode(_Batch(time.time(), [event], 0))
        self._socket.send_multipart((b"", self._sequence.to_bytes(8, "big"), batch))
        self._sequence += 1


def _name(number: int) -> bytes:
    return number.to_bytes(32, "big")
