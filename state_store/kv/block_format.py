"""A KV block as bytes: a head that says whose it is and how to check it, then the block itself.

The head holds what the key holds, so that a value that sits at a wrong key, is of another model or layout, was cut or
changed is told from a good one: it is a miss. Head, little endian, 80 bytes:

    magic 4 · version u16 · codec u16 · fingerprint 16 · raw size u64 · stored size u64 · checksum u64 · block hash 32
"""

import struct
from dataclasses import dataclass
from typing import Literal

import lz4.frame
import xxhash

MAGIC = b"GWKV"
VERSION = 1
HEAD = struct.Struct("<4sHH16sQQQ32s")
HEAD_BYTES = HEAD.size

Codec = Literal["none", "lz4"]
_CODECS: dict[Codec, int] = {"none": 0, "lz4": 1}


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


def pack(block: BlockId, raw: memoryview, codec: Codec = "none") -> tuple[bytes, memoryview]:
    """The head and the payload that store `raw`; the payload is `raw` itself unless it is compressed."""
    payload = raw if codec == "none" else memoryview(lz4.frame.compress(raw, store_size=False))
    if codec != "none" and len(payload) >= len(raw):
        # What does not shrink is kept as it is.
        codec, payload = "none", raw
    return head(block, len(raw), payload, codec), payload


def head(block: BlockId, raw_bytes: int, payload: memoryview, codec: Codec = "none") -> bytes:
    return HEAD.pack(
        MAGIC,
        VERSION,
        _CODECS[codec],
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
    magic, version, codec, fingerprint, raw_bytes, stored_bytes, checksum, block_hash = HEAD.unpack_from(
        value
    )
    if magic != MAGIC or version != VERSION or codec not in _CODECS.values():
        return "foreign"
    if fingerprint != block.fingerprint or block_hash != _padded(block.block_hash):
        return "foreign"
    if raw_bytes != len(raw):
        return "foreign"
    payload = value[HEAD_BYTES:]
    if stored_bytes != len(payload) or (codec == _CODECS["none"] and stored_bytes != raw_bytes):
        return "truncated"
    if checksum != _checksum(payload):
        return "corrupted"
    if codec == _CODECS["lz4"]:
        return _decompress(payload, raw)
    return ""


def is_compressed(value: memoryview) -> bool:
    """Whether a value that `unpack` found good was compressed, so that its block lies in `raw`."""
    return bool(HEAD.unpack_from(value)[2] != _CODECS["none"])


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
