"""What is stored is told from everything else: cut, flipped, foreign, of another version."""

import struct
from random import Random
from typing import get_args

import pytest

from state_store.kv.block_format import (
    HEAD,
    HEAD_BYTES,
    LOSSY,
    BlockId,
    Codec,
    is_compressed,
    pack,
    stored_bytes,
    unpack,
)

BLOCK = BlockId(b"f" * 16, b"h" * 32)
RAW = memoryview(bytes(range(256)) * 16)
COMPRESSIBLE = memoryview(bytes(4096))
EXACT = memoryview(struct.pack("<1024f", *[127.0, *range(-15, 16)] * 32))
"""Numbers that int8 keeps as they are."""


def stored(
    codec: Codec = "none", raw: memoryview = RAW, block: BlockId = BLOCK, dtype: str = "float32"
) -> bytes:
    head, payload = pack(block, raw, codec, dtype)
    return head + bytes(payload)


def check(value: bytes, raw_bytes: int = len(RAW), block: BlockId = BLOCK) -> str:
    return unpack(block, memoryview(value), memoryview(bytearray(raw_bytes)))


def test_a_good_block_is_good_and_lies_behind_its_head() -> None:
    value = stored()
    assert check(value) == ""
    assert value[HEAD_BYTES:] == bytes(RAW)
    assert not is_compressed(memoryview(value))


def test_the_payload_is_not_copied() -> None:
    assert pack(BLOCK, RAW)[1] is RAW


def test_lz4_gives_back_every_byte() -> None:
    value, raw = stored("lz4", COMPRESSIBLE), bytearray(b"x" * len(COMPRESSIBLE))
    assert len(value) < len(COMPRESSIBLE) // 10
    assert is_compressed(memoryview(value))
    assert unpack(BLOCK, memoryview(value), memoryview(raw)) == ""
    assert raw == COMPRESSIBLE


def test_who_reads_a_quantised_block_needs_not_know_how_it_was_kept() -> None:
    value, raw = stored("int8", EXACT), bytearray(len(EXACT))
    assert len(value) == stored_bytes(len(EXACT), "int8", "float32") < len(EXACT) // 3
    assert is_compressed(memoryview(value))
    assert unpack(BLOCK, memoryview(value), memoryview(raw)) == ""
    assert raw == EXACT


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize(
    ("raw", "dtype"),
    [(EXACT, "float8_e4m3fn"), (memoryview(b"\xff" * 4096), "float32"), (RAW[:100], "float32")],
)
def test_what_can_t_be_quantised_is_kept_as_it_is(codec: Codec, raw: memoryview, dtype: str) -> None:
    value = stored(codec, raw, dtype=dtype)
    assert value[HEAD_BYTES:] == bytes(raw)
    assert check(value, len(raw)) == ""


def test_what_does_not_shrink_is_kept_as_it_is() -> None:
    noise = memoryview(Random(1).randbytes(4096))
    value = stored("lz4", noise)
    assert not is_compressed(memoryview(value))
    assert check(value) == ""


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (b"", "truncated"),
        (b"\0" * (HEAD_BYTES - 1), "truncated"),
        (b"\0" * 4000, "foreign"),
        (stored()[:-1], "truncated"),
        (stored() + b"x", "truncated"),
        (stored()[:HEAD_BYTES], "truncated"),
        (stored(block=BlockId(b"g" * 16, b"h" * 32)), "foreign"),
        (stored(block=BlockId(b"f" * 16, b"i" * 32)), "foreign"),
        (stored(raw=RAW[:-1]), "foreign"),
        (stored()[:4] + b"\x02" + stored()[5:], "foreign"),
        (stored("lz4", COMPRESSIBLE)[:-1], "truncated"),
    ],
)
def test_what_is_not_the_block_is_a_miss(value: bytes, verdict: str) -> None:
    assert check(value) == verdict


@pytest.mark.parametrize("codec", get_args(Codec))
def test_any_flipped_bit_is_a_miss(codec: Codec) -> None:
    raw, rng = memoryview(bytes(2000) + bytes(range(64)) * 33), Random(7)
    good = stored(codec, raw)
    for _ in range(500):
        value = bytearray(good)
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        assert unpack(BLOCK, memoryview(bytes(value)), memoryview(bytearray(len(raw)))) != ""


def test_a_compressed_payload_with_a_right_checksum_and_a_wrong_size_is_a_miss() -> None:
    _, payload = pack(BLOCK, COMPRESSIBLE, "lz4")
    lying = HEAD.pack(b"GWKV", 1, 1, BLOCK.fingerprint, 5000, len(payload), 0, BLOCK.block_hash)
    assert check(lying + bytes(payload), 5000) == "corrupted"


def test_keys_hold_whose_it_is() -> None:
    assert BLOCK.key == b"graceway:kv:" + b"66" * 16 + b":" + b"68" * 32
