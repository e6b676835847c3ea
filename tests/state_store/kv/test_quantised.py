"""What a block loses in one byte an element: no more than half a step of its run's scale."""

from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from state_store.kv.quantised import (
    GROUP,
    ITEM_BYTES,
    Lossy,
    can_quantise,
    dequantise,
    quantise,
    quantised_bytes,
)

CODECS: tuple[Lossy, ...] = ("int8", "fp8")
EACH_CODEC = pytest.mark.parametrize("codec", CODECS)
EACH_DTYPE = pytest.mark.parametrize("dtype", ITEM_BYTES)
ELEMENTS = 50 * 1024
OWN_ERROR = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-23}
"""Of a number as such an element, in relation to it."""
LEAST_ERROR = {"bfloat16": 0.0, "float16": 2.0**-25, "float32": 0.0}
"""However small the number."""


def raw_of(numbers: NDArray[np.float32], dtype: str) -> memoryview:
    if dtype == "bfloat16":
        return memoryview((numbers.view(np.uint32) >> 16).astype(np.uint16)).cast("B")
    return memoryview(numbers.astype(dtype)).cast("B")


def numbers_of(raw: memoryview, dtype: str) -> NDArray[np.float32]:
    if dtype == "bfloat16":
        return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(raw, dtype).astype(np.float32)


def there_and_back(raw: memoryview, codec: Lossy, dtype: str) -> NDArray[np.float32]:
    payload = quantise(raw, codec, dtype)
    assert payload is not None
    assert len(payload) == quantised_bytes(len(raw), dtype)
    back = memoryview(bytearray(len(raw)))
    assert dequantise(payload, back, codec, dtype)
    return numbers_of(back, dtype)


def noise(seed: int) -> NDArray[np.float32]:
    """Runs of very different sizes, some with one element that is far larger than the rest, some of nothing."""
    rng = np.random.default_rng(seed)
    runs = rng.standard_normal((ELEMENTS // GROUP, GROUP)) * 10.0 ** rng.uniform(
        -4, 3, (ELEMENTS // GROUP, 1)
    )
    runs[::7, 3] *= 20
    runs[::11] = 0
    return runs.astype(np.float32).reshape(-1)


@EACH_CODEC
@EACH_DTYPE
def test_each_element_is_off_by_half_a_step_at_most(codec: Lossy, dtype: str) -> None:
    raw = raw_of(noise(1), dtype)
    given, got = numbers_of(raw, dtype), there_and_back(raw, codec, dtype)
    top = np.abs(given.reshape(-1, GROUP)).max(axis=1).repeat(GROUP)
    # The scale is rounded up by one part in 128 at most.
    step = (
        top * 1.008 / 127 if codec == "int8" else np.maximum(np.abs(given) / 8, top * 1.008 / 448 * 2.0**-9)
    )
    own = OWN_ERROR[dtype] * np.abs(given) + LEAST_ERROR[dtype]
    assert (np.abs(got - given) <= step / 2 + own + 1e-7 * top).all()


@EACH_CODEC
@EACH_DTYPE
def test_what_has_been_there_and_back_stays_as_it_is(codec: Lossy, dtype: str) -> None:
    """Zeros, and numbers that a code stands for exactly."""
    exact = np.zeros(4 * GROUP, dtype=np.float32)
    exact[GROUP : GROUP + 3] = (127.0, -64.0, 1.0) if codec == "int8" else (448.0, -1.75, 2.0**-9)
    assert (there_and_back(raw_of(exact, dtype), codec, dtype) == exact).all()


@EACH_CODEC
def test_the_largest_half_stays_finite(codec: Lossy) -> None:
    most = float(np.finfo(np.float16).max)
    got = there_and_back(raw_of(np.full(GROUP, most, dtype=np.float32), "float16"), codec, "float16")
    assert np.isfinite(got).all()
    assert (got > 0.98 * most).all()


@EACH_CODEC
@EACH_DTYPE
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_not_quantised(codec: Lossy, dtype: str, odd: float) -> None:
    numbers = noise(2)
    numbers[Random(3).randrange(ELEMENTS)] = odd
    assert quantise(raw_of(numbers, dtype), codec, dtype) is None


def test_the_codes_of_fp8() -> None:
    """As the specification has them: the least, the least normal, one, the step above it, the largest, and their opposites."""
    numbers = np.zeros(GROUP, dtype=np.float32)
    numbers[:8] = (2.0**-9, 2.0**-6, 1.0, 1.125, 448.0, -1.0, -448.0, 0.0)
    payload = quantise(raw_of(numbers, "float32"), "fp8", "float32")
    assert payload is not None
    assert list(payload[2:10]) == [0x01, 0x08, 0x38, 0x39, 0x7E, 0xB8, 0xFE, 0x00]


def test_half_way_between_two_codes_the_even_one_is_taken() -> None:
    numbers = np.zeros(GROUP, dtype=np.float32)
    numbers[:4] = (448.0, 1.0625, 1.1875, -1.0625)
    payload = quantise(raw_of(numbers, "float32"), "fp8", "float32")
    assert payload is not None
    assert list(payload[2:6]) == [0x7E, 0x38, 0x3A, 0xB8]


@pytest.mark.parametrize(
    ("raw_bytes", "dtype", "expected"),
    [
        (128, "float32", True),
        (64, "bfloat16", True),
        (64, "float32", False),
        (65, "float16", False),
        (64, "uint8", False),
        (64, "float8_e4m3fn", False),
    ],
)
def test_only_whole_runs_of_elements_that_are_larger_than_a_byte(
    raw_bytes: int, dtype: str, expected: bool
) -> None:
    assert can_quantise(raw_bytes, dtype) == expected


@EACH_CODEC
def test_a_payload_of_another_size_is_refused(codec: Lossy) -> None:
    payload = quantise(raw_of(noise(4), "float32"), codec, "float32")
    assert payload is not None
    for wrong in (payload[:-1], payload[:0], memoryview(bytes(payload) + b"x")):
        assert not dequantise(wrong, memoryview(bytearray(4 * ELEMENTS)), codec, "float32")
