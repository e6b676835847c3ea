"""Room on GPUs for slices of given shapes: whether they fit together, and where, over any number of GPUs.

All kinds of GPU here share one table of starts, which makes packing exact and cheap. A GPU is two halves of four
memory slices. The upper half has no 1g at its last memory slice, so of its two pairs one is weak: it holds a
1g+mem or one 1g, where a strong pair holds a 2g, a 1g+mem or two 1g. Placing the pickiest shape first, each in the
least useful room that takes it, never costs a later shape anything:

7g takes whole GPUs; 4g lower halves; 3g upper halves, then lower ones; 2g strong pairs; 1g+mem weak pairs, then
strong ones; 1g what is left.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHAPES = ("1g", "1g+mem", "2g", "3g", "4g", "7g")
"""Each fits wherever a later one does, so this is also an order of how much room a shape costs."""
MEMORY = np.array([1, 2, 2, 4, 4, 8], dtype=np.int64)
COMPUTE = np.array([1, 1, 2, 3, 4, 7], dtype=np.int64)
FULL = 0xFF
Counts = npt.NDArray[np.int64]
"""Slices by shape, in the order of SHAPES; the last axis has six entries."""

_LOWER, _UPPER = 0x0F, 0xF0


@dataclass(frozen=True, slots=True)
class Room:
    """Free room, summed over GPUs: `whole` GPUs, and halves and pairs of GPUs that are not wholly free."""

    whole: int = 0
    lower: int = 0
    upper: int = 0
    strong: int = 0
    weak: int = 0
    single: int = 0
    """Memory slices that take a 1g and nothing larger."""

    @classmethod
    def in_masks(cls, free: Iterable[int]) -> "Room":
        """The room on GPUs whose free memory slices are these bits."""
        total = np.zeros(6, dtype=np.int64)
        for mask in free:
            total += _ROOM_OF_MASK[mask]
        return cls(*map(int, total))

    def fits(self, counts: Counts) -> npt.NDArray[np.bool_]:
        """Whether slices in these counts find room together, for each row."""
        small, double, two, three, four, seven = np.moveaxis(counts, -1, 0)
        halves = self.whole - seven
        lower = self.lower + halves - four
        upper = self.upper + halves
        in_upper = np.minimum(three, upper)
        lower_left = lower - (three - in_upper)
        upper_left = upper - in_upper
        strong = self.strong + 2 * lower_left + upper_left - two
        weak = self.weak + upper_left
        in_weak = np.minimum(double, weak)
        strong_left = strong - (double - in_weak)
        singles = self.single + 2 * strong_left + (weak - in_weak)
        found: npt.NDArray[np.bool_] = (
            (halves >= 0)
            & (lower >= 0)
            & (lower_left >= 0)
            & (strong >= 0)
            & (strong_left >= 0)
            & (singles >= small)
        )
        return found


def _room_of(mask: int) -> tuple[int, ...]:
    if mask == FULL:
        return (1, 0, 0, 0, 0, 0)
    lower, upper = mask & _LOWER == _LOWER, mask & _UPPER == _UPPER
    strong = weak = single = 0
    for start in (0, 2, 4):
        if (lower and start < 4) or (upper and start == 4):
            continue
        pair = mask >> start & 3
        strong += pair == 3
        single += pair in (1, 2)
    if not upper:
        weak += mask >> 6 == 3
        single += mask >> 6 == 1
    return (0, lower, upper, strong, weak, single)


_ROOM_OF_MASK: Mapping[int, npt.NDArray[np.int64]] = {
    mask: np.array(_room_of(mask), dtype=np.int64) for mask in range(256)
}

_SIZE = {"1g": 1, "1g+mem": 2, "2g": 2, "3g": 4, "4g": 4, "7g": 8}
# The starts of each shape, the least useful first.
_STARTS: Mapping[str, Sequence[int]] = {
    "7g": (0,),
    "4g": (0,),
    "3g": (4, 0),
    "2g": (4, 2, 0),
    "1g+mem": (6, 4, 2, 0),
    "1g": (6, 5, 4, 3, 2, 1, 0),
}


def place_all(shapes: Sequence[str], free: Sequence[int]) -> list[tuple[int, int]] | None:
    """(GPU, start) for each of these shapes on GPUs with these free memory slices; None when they don't all fit."""
    masks = list(free)
    placed: list[tuple[int, int] | None] = [None] * len(shapes)
    for index in sorted(range(len(shapes)), key=lambda i: SHAPES.index(shapes[i]), reverse=True):
        spot = _least_useful(shapes[index], masks)
        if spot is None:
            return None
        gpu, start = spot
        masks[gpu] &= ~(((1 << _SIZE[shapes[index]]) - 1) << start)
        placed[index] = spot
    return [spot for spot in placed if spot is not None]


def _least_useful(shape: str, masks: Sequence[int]) -> tuple[int, int] | None:
    """The free (GPU, start) whose use costs later shapes least."""
    size = _SIZE[shape]
    best: tuple[tuple[int, ...], tuple[int, int]] | None = None
    for gpu, mask in enumerate(masks):
        for rank, start in enumerate(_STARTS[shape]):
            bits = ((1 << size) - 1) << start
            if mask & bits == bits:
                cost = (*_loss(mask, start, size), rank, gpu)
                best = min(best, (cost, (gpu, start))) if best else (cost, (gpu, start))
    return None if best is None else best[1]


def _loss(mask: int, start: int, size: int) -> tuple[int, ...]:
    """What a slice there takes: a lower half, a strong (2) or weak (1) pair; then what it breaks for nothing."""
    half = _UPPER if start >= 4 else _LOWER
    pair = 3 << (start & ~1)
    takes_pair = 0 if mask & pair != pair or size > 2 else (1 if start >= 6 else 2)
    return (int(size == 4 and start == 0), takes_pair, int(mask == FULL), int(mask & half == half))
