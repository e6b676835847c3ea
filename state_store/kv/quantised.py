"""KV blocks in one byte an element instead of two or four: with loss, each run of elements on a scale of its own.

A payload is the scales, then the codes, in the order of the block's elements. A scale is the upper half of a float32, rounded
up, so that it reaches as far as bfloat16 does. `int8` is the finer one; `fp8` (E4M3 as of the OCP specification, without
infinities) is finer only for elements far below the largest of their run. Numbers are handled a piece at a time, so that what
lies between the steps stays in the processor's cache.
"""

from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Lossy = Literal["int8", "fp8"]
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Elements that can be quantised, as torch calls them. Others, such as fp8 of the engine's own, are small already."""
GROUP = 32
"""Elements with a scale in common: no more than a head has channels, which differ less among themselves than tokens do."""
_PIECE = 1 << 15
_TOP: dict[Lossy, float] = {"int8": 127.0, "fp8": 448.0}
_SCALE_BYTES = 2
_CODES = 127
"""Of fp8 from zero up; the next one is no number."""

Floats = NDArray[np.float32]
Array = NDArray[Any]


def can_quantise(raw_bytes: int, dtype: str) -> bool:
    """Whether blocks of so many bytes are whole runs of such elements."""
    return dtype in ITEM_BYTES and raw_bytes % (GROUP * ITEM_BYTES[dtype]) == 0


def quantised_bytes(raw_bytes: int, dtype: str) -> int:
    """What a block of so many bytes takes."""
    elements = raw_bytes // ITEM_BYTES[dtype]
    return elements + elements // GROUP * _SCALE_BYTES


def quantise(raw: memoryview, codec: Lossy, dtype: str) -> memoryview | None:
    """The payload; None for a block of which some element is no finite number."""
    elements = _elements(raw, dtype)
    payload = np.empty(quantised_bytes(len(raw), dtype), dtype=np.uint8)
    scales, codes = _split(payload)
    for first in range(0, len(elements), _PIECE):
        piece = _as_float32(elements[first : first + _PIECE], dtype).reshape(-1, GROUP)
        top = np.abs(piece).max(axis=1)
        if not np.isfinite(top).all():
            return None
        scale_bits = ((top / np.float32(_TOP[codec])).view(np.uint32) + np.uint32(0xFFFF)) >> 16
        scales[first // GROUP :][: len(scale_bits)] = scale_bits
        scale = _scale(scale_bits)
        scale[scale == 0] = 1
        codes[first : first + piece.size] = _encode(piece / scale[:, None], codec).reshape(-1)
    return payload.data


def dequantise(payload: memoryview, raw: memoryview, codec: Lossy, dtype: str) -> bool:
    """Fills `raw`; whether the payload has the size that it takes."""
    if len(payload) != quantised_bytes(len(raw), dtype):
        return False
    elements = _elements(raw, dtype)
    scales, codes = _split(np.frombuffer(payload, dtype=np.uint8))
    for first in range(0, len(elements), _PIECE):
        piece = _decode(codes[first : first + _PIECE], codec).reshape(-1, GROUP)
        piece *= _scale(scales[first // GROUP :][: len(piece)])[:, None]
        _put(elements[first : first + _PIECE], piece.reshape(-1), dtype)
    return True


def _elements(raw: memoryview, dtype: str) -> Array:
    """bfloat16 as bits: numpy has no such numbers."""
    return np.frombuffer(raw, dtype=np.uint16 if dtype == "bfloat16" else dtype)


def _split(payload: NDArray[np.uint8]) -> tuple[Array, NDArray[np.uint8]]:
    """The scales and the codes."""
    groups = len(payload) // (GROUP + _SCALE_BYTES)
    return payload[: groups * _SCALE_BYTES].view(np.uint16), payload[groups * _SCALE_BYTES :]


def _scale(bits: Array) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _as_float32(elements: Array, dtype: str) -> Floats:
    return _scale(elements) if dtype == "bfloat16" else elements.astype(np.float32)


def _put(elements: Array, numbers: Floats, dtype: str) -> None:
    """Rounds to the nearest."""
    if dtype == "bfloat16":
        bits = numbers.view(np.uint32)
        elements[:] = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    elif dtype == "float16":
        # A scale that was rounded up may reach beyond the largest number.
        most = np.finfo(np.float16).max
        elements[:] = np.clip(numbers, -most, most)
    else:
        elements[:] = numbers


def _encode(numbers: Floats, codec: Lossy) -> NDArray[np.uint8]:
    """Numbers up to the codec's top as codes."""
    if codec == "int8":
        return np.rint(numbers).astype(np.int8).view(np.uint8)
    return _fp8_of_half()[numbers.astype(np.float16).view(np.uint16)]


def _decode(codes: NDArray[np.uint8], codec: Lossy) -> Floats:
    if codec == "int8":
        return codes.view(np.int8).astype(np.float32)
    return _fp8()[codes]


@cache
def _fp8() -> Floats:
    """The number of each code of E4M3: a sign, four bits of exponent with a bias of 7, three of mantissa."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[codes & 127 == _CODES] = np.nan
    return np.where(codes < 128, size, -size).astype(np.float32)


@cache
def _fp8_of_half() -> NDArray[np.uint8]:
    """The nearest code of each float16, by its bits; of two that are as near, the even one."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    sizes = np.abs(np.nan_to_num(halves, nan=0.0, posinf=_TOP["fp8"], neginf=-_TOP["fp8"]))
    numbers = _fp8()[:_CODES]
    between = (numbers[1:] + numbers[:-1]) / 2
    low, high = np.searchsorted(between, sizes, "left"), np.searchsorted(between, sizes, "right")
    codes = np.where(low % 2 == 0, low, high) | np.where(np.signbit(halves), 128, 0)
    found: NDArray[np.uint8] = codes.astype(np.uint8)
    return found
