"""A KV block as bytes: a head that says whose it is and how to check it, then the block itself.

The head holds what the key holds, so that a value that sits at a wrong key, is of another model or layout, was cut or
changed is told from a good one: it is a miss. Head, little endian, 80 bytes:

    magic 4 · version u16 · codec u16 · fingerprint 16 · raw size u64 · stored size u64 · checksum u64 · block hash 32

The codec's upper byte is the dtype of a block that was quantised.
"""

import struct
from dataclasses import dataclass
from typing import Literal, get_args

import lz4.frame
import xxhash

from state_store.kv.quantised import (
    ITEM_BYTES,
    Lossy,
    can_quantise,
    dequantise,
    quantise,
    quantised_bytes,
)

BLOCK_KEYS = b"graceway:kv:*"
"""What all blocks' keys look like."""
MAGIC = b"GWKV"
VERSION = 1
HEAD = struct.Struct("<4sHH16sQQQ32s")
HEAD_BYTES = HEAD.size

Codec = Literal["none", "lz4", "int8", "fp8"]
LOSSY: tuple[Lossy, ...] = get_args(Lossy)
_NONE, _LZ4 = 0, 1
_QUANTISED = {
    kind + (number << 8): (codec, dtype)
    for kind, codec in enumerate(LOSSY, 2)
    for number, dtype in enumerate(ITEM_BYTES, 1)
}
"""What was quantised how, by its number in the head."""
_NUMBERS = {quantised: number for number, quantised in _QUANTISED.items()}


@dataclass(frozen=True, slots=True)
class BlockId:
    """Which block: the fingerprint of the engine's cache that it fits, and the hash of all tokens up to its end."""

    fingerprint: bytes
    """16 bytes: model, weights, dtype, layout, block size, rank; see `replicas/kv/fingerprint.py`."""
    block_hash: bytes

    @property
    def key(self) -> bytes:
        """Its key. Without a hash tag, so that a cluster spreads blocks over its nodes."""
        return b"graceway:kv:%s:%s" % (self.fingerprint.hex().encode(), self.block_hash.hex().encode())


def pack(block: BlockId, raw: memoryview, codec: Codec = "none", dtype: str = "") -> tuple[bytes, memoryview]:
    """The head and the payload that store `raw`; the payload is `raw` itself unless it is compressed. `dtype` is what a codec
    with loss takes its elements for."""
    number, payload = _NONE, raw
    if codec == "lz4":
        number, payload = _LZ4, memoryview(lz4.frame.compress(raw, store_size=False))
    elif codec != "none" and can_quantise(len(raw), dtype):
        quantised = quantise(raw, codec, dtype)
        if quantised is not None:
            number, payload = _NUMBERS[codec, dtype], quantised
    if len(payload) >= len(raw):
        # What does not shrink is kept as it is.
        number, payload = _NONE, raw
    return _head(block, len(raw), payload, number), payload


def stored_bytes(raw_bytes: int, codec: Codec, dtype: str) -> int:
    """What a block of so many bytes takes in the store, with its head; at most, where that depends on what it holds."""
    is_quantised = codec in LOSSY and can_quantise(raw_bytes, dtype)
    return HEAD_BYTES + (quantised_bytes(raw_bytes, dtype) if is_quantised else raw_bytes)


def _head(block: BlockId, raw_bytes: int, payload: memoryview, codec: int) -> bytes:
    return HEAD.pack(
        MAGIC,
        VERSION,
        codec,
        block.fingerprint,
        raw_bytes,
        len(payload),
        _checksum(payload),
        _padded(block.block_hash),
    )


def unpack(block: BlockId, value: memoryview, raw: memoryview) -> str:
    """Whether `value` is `block`, whole: empty if so, else what is wrong. Decompressed into `raw` if it must be.

    With codec `none` nothing is copied: the block is `value[HEAD_BYTES:]`.
    """
    if len(value) < HEAD_BYTES:
        return "truncated"
    magic, version, codec, fingerprint, raw_bytes, payload_bytes, checksum, block_hash = HEAD.unpack_from(
        value
    )
    if magic != MAGIC or version != VERSION or not (codec in (_NONE, _LZ4) or codec in _QUANTISED):
        return "foreign"
    if fingerprint != block.fingerprint or block_hash != _padded(block.block_hash):
        return "foreign"
    if raw_bytes != len(raw):
        return "foreign"
    payload = value[HEAD_BYTES:]
    if payload_bytes != len(payload) or (codec == _NONE and payload_bytes != raw_bytes):
        return "truncated"
    if checksum != _checksum(payload):
        return "corrupted"
    if codec == _LZ4:
        return _decompress(payload, raw)
    if codec in _QUANTISED:
        return "" if dequantise(payload, raw, *_QUANTISED[codec]) else "corrupted"
    return ""


def is_compressed(value: memoryview) -> bool:
    """Whether a value that `unpack` found good was compressed, so that its block lies in `raw`."""
    return bool(HEAD.unpack_from(value)[2] != _NONE)


def _decompress(payload: memoryview, raw: memoryview) -> str:
    try:
        plain = lz4.frame.decompress(payload)
    except RuntimeError:
        return "corrupted"
    if len(plain) != len(raw):
        return "corrupted"
    raw[:] = plain
    return ""


def _checksum(payload: memoryview) -> int:
    return xxhash.xxh3_64_intdigest(payload)


def _padded(block_hash: bytes) -> bytes:
    return block_hash[:32].ljust(32, b"\0")
