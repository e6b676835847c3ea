"""The simulated engine's events of what its prefix cache holds, as vLLM 0.32 publishes them over ZeroMQ."""

import threading
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import zmq

KEPT_MESSAGES = 10_000
END = (-1).to_bytes(8, "big", signed=True)


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
    """Publishes at an endpoint that it binds; a message a change. At a second one it is asked for what came before."""

    def __init__(self, endpoint: str) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
        self._socket.bind(endpoint)
        self._sequence = 0
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=KEPT_MESSAGES)
        self._lock = threading.Lock()
        asked: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        asked.bind(f"{endpoint}-replay")
        threading.Thread(target=self._answer, args=(asked,), name="kv-replay", daemon=True).start()

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
        number = self._sequence.to_bytes(8, "big")
        with self._lock:
            self._socket.send_multipart((b"", number, batch))
            self._kept.append((number, batch))
        self._sequence += 1

    def _answer(self, asked: "zmq.Socket[bytes]") -> None:
        """Tells whoever asks again what has been published from a number on, and when that was all."""
        while True:
            who, _, first = asked.recv_multipart()
            with self._lock:
                kept = list(self._kept)
            for number, batch in kept:
                if number >= first:
                    asked.send_multipart((who, b"", b"", number, batch))
            asked.send_multipart((who, b"", b"", END, b""))


def _name(number: int) -> bytes:
    return number.to_bytes(32, "big")
