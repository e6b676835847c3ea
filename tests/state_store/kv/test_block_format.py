"""What is stored is told from everything else: cut, flipped, foreign, of another version."""

from random import Random

import pytest

from state_store.kv.block_format import HEAD, HEAD_BYTES, BlockId, Codec, is_compressed, pack, unpack

BLOCK = BlockId(b"f" * 16, b"h" * 32)
RAW = memoryview(bytes(range(256)) * 16)
COMPRESSIBLE = memoryview(bytes(4096))


def stored(codec: Codec = "none", raw: memoryview = RAW, block: BlockId = BLOCK) -> bytes:
    head, payload = pack(block, raw, codec)
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


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_any_flipped_bit_is_a_miss(codec: Codec) -> None:
    raw, rng = memoryview(bytes(2000) + bytes(range(256)) * 8), Random(7)
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
