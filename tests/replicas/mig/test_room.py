"""The closed formula for what fits, and the places it promises, against layouts enumerated from the table."""

import random
from collections import Counter
from itertools import product

import numpy as np
import pytest

from replicas.mig.geometry import GEOMETRIES
from replicas.mig.layout import Placement, fault_of, layouts, mask_of
from replicas.mig.room import FULL, SHAPES, Room, place_all

H200 = GEOMETRIES["H200-141GB"]
NAME = {p.shape: p.name for p in H200.compute_profiles}
SHAPE = {p.name: p.shape for p in H200.compute_profiles}


def counts_of(shapes: list[str]) -> np.ndarray:
    return np.array([shapes.count(shape) for shape in SHAPES])


def fillings(free: int) -> set[tuple[int, ...]]:
    """Counts of every legal layout within these memory slices."""
    return {
        tuple(counts_of([SHAPE[p.profile] for p in layout]))
        for layout in layouts(H200)
        if all(mask_of(H200.profiles[p.profile], p.start) & ~free == 0 for p in layout)
    }


LAYOUT_MASKS = sorted(
    {FULL & ~sum(mask_of(H200.profiles[p.profile], p.start) for p in layout) for layout in layouts(H200)}
)


@pytest.mark.parametrize("free", LAYOUT_MASKS)
def test_one_gpu_with_any_slices_already_on_it(free: int) -> None:
    truth = fillings(free)
    every = np.array(list(product(range(8), range(5), range(4), range(3), range(2), range(2))))
    fits = Room.in_masks([free]).fits(every)
    assert {tuple(row) for row in every[fits]} == truth


def test_two_gpus_partly_taken() -> None:
    rng = random.Random(1)
    by_mask = {mask: fillings(mask) for mask in LAYOUT_MASKS}
    for _ in range(60):
        free = [rng.choice(LAYOUT_MASKS), rng.choice(LAYOUT_MASKS)]
        truth = {tuple(np.add(a, b)) for a, b in product(by_mask[free[0]], by_mask[free[1]])}
        every = np.array([[rng.randrange(m) for m in (10, 6, 5, 4, 3, 2)] for _ in range(300)] + [*truth])
        fits = Room.in_masks(free).fits(every)
        assert {tuple(row) for row in every[fits]} == {tuple(row) for row in every} & truth


def test_what_fits_is_placed_legally_and_what_does_not_is_refused() -> None:
    rng = random.Random(2)
    placed = 0
    for _ in range(2000):
        free = [rng.choice([FULL, rng.choice(LAYOUT_MASKS)]) for _ in range(rng.randint(1, 4))]
        shapes = [rng.choice(SHAPES) for _ in range(rng.randint(1, 10))]
        spots = place_all(shapes, free)
        assert (spots is not None) == bool(Room.in_masks(free).fits(counts_of(shapes)))
        if spots is None:
            continue
        placed += 1
        for gpu, mask in enumerate(free):
            layout = [
                Placement(s, NAME[shape]) for shape, (g, s) in zip(shapes, spots, strict=True) if g == gpu
            ]
            assert fault_of(H200, layout) is None
            assert all(mask_of(H200.profiles[p.profile], p.start) & ~mask == 0 for p in layout)
    assert 300 < placed < 1900


def test_each_shape_fits_wherever_a_larger_one_does() -> None:
    for free in LAYOUT_MASKS:
        room = Room.in_masks([free])
        single = [bool(room.fits(counts_of([shape]))) for shape in SHAPES]
        assert single == sorted(single, reverse=True), Counter(single)
