"""The cheapest legal partition of GPUs of one kind for a set of models: exact, by counts of slices, then places.

Cheapest is, in this order: fewest GPUs, fewest memory slices, fewest compute slices, fewest replicas. Which counts
of slices fit together is a closed formula (`room.py`), so the search runs over counts alone: for each model the
count vectors that carry its load and none of whose slices could be smaller, then their combinations that fit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replicas.mig.geometry import Geometry
from replicas.mig.layout import Placement
from replicas.mig.need import DEFAULT_REACH, Need, Reach, SliceCapacity, capacity_of
from replicas.mig.room import COMPUTE, FULL, MEMORY, SHAPES, Counts, Room, place_all

_CHUNK_ROWS = 500_000


@dataclass(frozen=True, slots=True)
class Assigned:
    """A slice with the model it serves and what it carries of it."""

    placement: Placement
    model: str
    capacity: SliceCapacity


@dataclass(frozen=True, slots=True)
class Plan:
    """A partition: for each GPU its slices, in the order of their starts. GPUs that stay whole are left out."""

    geometry: Geometry
    gpus: tuple[tuple[Assigned, ...], ...]

    @property
    def cost(self) -> tuple[int, int, int, int]:
        """GPUs, memory slices, compute slices, replicas."""
        used = [self.geometry.profile(a.placement.profile) for gpu in self.gpus for a in gpu]
        return (
            len(self.gpus),
            sum(p.memory_slices for p in used),
            sum(p.compute_slices for p in used),
            len(used),
        )

    def slots(self, model: str) -> int:
        """Sequences at once that the plan gives a model."""
        return sum(a.capacity.slots for gpu in self.gpus for a in gpu if a.model == model)


class NoPlan(Exception):  # noqa: N818 - an answer that callers show
    """No partition carries the load; `str()` says for which model and why."""


def plan(needs: Sequence[Need], geometry: Geometry, gpus: int, reach: Reach = DEFAULT_REACH) -> Plan:
    """The cheapest partition of at most `gpus` GPUs that carries all needs. Raises `NoPlan` when there is none."""
    capacities = {
        need.name: [capacity_of(need, geometry, p, reach) for p in geometry.compute_profiles]
        for need in needs
    }
    for need in needs:
        _check_alone(need, capacities[need.name], geometry)
    counts = cheapest_counts(
        [_slots(capacities[need.name]) for need in needs],
        [need.concurrency for need in needs],
        [need.min_replicas for need in needs],
        gpus,
    )
    if counts is None:
        names = ", ".join(need.name for need in needs)
        raise NoPlan(f"{gpus} × {geometry.gpu} can't carry {names} together")
    return _placed([need.name for need in needs], counts, geometry, capacities)


def _check_alone(need: Need, capacities: Sequence[SliceCapacity], geometry: Geometry) -> None:
    if not any(c.slots for c in capacities):
        largest = capacities[-1]
        why = {
            "weights": "its weights and one sequence need more memory",
            "ttft": "its prompt takes longer than the SLO's ttft_s",
            "itl": "one step takes longer than the SLO's itl_s",
        }[largest.limited_by]
        raise NoPlan(f"{need.name} fits no slice of {geometry.gpu}: on {largest.profile}, {why}")


def _slots(capacities: Sequence[SliceCapacity]) -> npt.NDArray[np.int64]:
    return np.array([c.slots for c in capacities], dtype=np.int64)


def cheapest_counts(
    slots: Sequence[npt.NDArray[np.int64]], wanted: Sequence[int], min_replicas: Sequence[int], gpus: int
) -> Counts | None:
    """Slices by model and shape, of least cost; None when no counts fit on `gpus` GPUs.

    `slots[m]` are what a slice of each shape carries of model m.
    """
    covers = [covers_of(*args, gpus) for args in zip(slots, wanted, min_replicas, strict=True)]
    if any(len(rows) == 0 for rows in covers):
        return None
    least = [int((rows @ MEMORY).min()) for rows in covers]
    for used in range(max(1, -(-sum(least) // 8)), gpus + 1):
        room = Room(whole=used)
        usable = [
            rows[room.fits(rows) & (rows @ MEMORY <= 8 * used - (sum(least) - own))]
            for rows, own in zip(covers, least, strict=True)
        ]
        if (best := _cheapest_together(usable, room)) is not None:
            return best
    return None


def covers_of(slots: npt.NDArray[np.int64], wanted: int, min_replicas: int, gpus: int) -> Counts:
    """Count vectors that carry `wanted` sequences with enough replicas, where no slice could be smaller.

    A smaller slice fits wherever a larger one does and costs no more, so one of these is in a cheapest plan.
    """
    useful = _useful(slots)
    if not useful:
        return np.zeros((0, 6), dtype=np.int64)
    room = Room(whole=gpus)
    rows = np.zeros((1, 6), dtype=np.int64)
    for shape in reversed(useful[1:]):
        rows = _with_more(rows, shape, max(-(-wanted // int(slots[shape])), min_replicas))
        rows = rows[room.fits(rows)]
    smallest = useful[0]
    missing = np.maximum(0, -(-(wanted - rows @ slots) // slots[smallest]))
    rows[:, smallest] = np.maximum(missing, min_replicas - rows.sum(axis=1))
    rows = rows[room.fits(rows)]
    return rows[_is_tight(rows, slots, useful, wanted, min_replicas)]


def _useful(slots: npt.NDArray[np.int64]) -> list[int]:
    """Shapes that carry more than every smaller one."""
    return [i for i in range(len(SHAPES)) if slots[i] > max(slots[:i], default=0)]


def _with_more(rows: Counts, shape: int, most: int) -> Counts:
    """Each row with 0 to `most` slices of that shape."""
    most = min(most, 64)
    expanded = np.repeat(rows, most + 1, axis=0)
    expanded[:, shape] = np.tile(np.arange(most + 1), len(rows))
    return expanded


def _is_tight(
    rows: Counts, slots: npt.NDArray[np.int64], useful: Sequence[int], wanted: int, min_replicas: int
) -> npt.NDArray[np.bool_]:
    """Rows in which no single slice can be the next smaller useful one, or, if the smallest, be left out."""
    carried = rows @ slots
    tight = np.ones(len(rows), dtype=np.bool_)
    for smaller, shape in zip([None, *useful], useful, strict=False):
        instead = 0 if smaller is None else slots[smaller]
        loose = (rows[:, shape] > 0) & (carried - slots[shape] + instead >= wanted)
        if smaller is None:
            loose &= rows.sum(axis=1) > min_replicas
        tight &= ~loose
    return tight


def _cheapest_together(covers: Sequence[Counts], room: Room) -> Counts | None:
    """One row of each cover that fit together at least cost."""
    totals = np.zeros((1, 6), dtype=np.int64)
    chosen = np.zeros((1, 0), dtype=np.int64)
    for rows in covers:
        parts = [
            _joined(totals[at : at + step], chosen[at : at + step], rows, room)
            for step in [max(1, _CHUNK_ROWS // max(1, len(rows)))]
            for at in range(0, len(totals), step)
        ]
        totals = np.concatenate([t for t, _ in parts]) if parts else np.zeros((0, 6), dtype=np.int64)
        if len(totals) == 0:
            return None
        chosen = np.concatenate([c for _, c in parts])
        totals, chosen = _distinct(totals, chosen)
    best = int(np.lexsort((*totals.T, totals.sum(axis=1), totals @ COMPUTE, totals @ MEMORY))[0])
    return np.stack([rows[index] for rows, index in zip(covers, chosen[best], strict=True)])


def _joined(
    totals: Counts, chosen: npt.NDArray[np.int64], rows: Counts, room: Room
) -> tuple[Counts, npt.NDArray[np.int64]]:
    """Each total with each row added, where the sum fits."""
    sums = (totals[:, None, :] + rows[None, :, :]).reshape(-1, 6)
    kept = np.nonzero(room.fits(sums))[0]
    earlier, added = np.divmod(kept, max(1, len(rows)))
    return sums[kept], np.concatenate([chosen[earlier], added[:, None]], axis=1)


def _distinct(totals: Counts, chosen: npt.NDArray[np.int64]) -> tuple[Counts, npt.NDArray[np.int64]]:
    keys = totals @ (np.int64(64) ** np.arange(6))
    _, first = np.unique(keys, return_index=True)
    return totals[first], chosen[first]


def _placed(
    names: Sequence[str],
    counts: Counts,
    geometry: Geometry,
    capacities: Mapping[str, Sequence[SliceCapacity]],
) -> Plan:
    shapes = [SHAPES[i] for i, count in enumerate(counts.sum(axis=0)) for _ in range(count)]
    gpus = next(k for k in range(1, len(shapes) + 1) if Room(whole=k).fits(counts.sum(axis=0)))
    spots = place_all(shapes, [FULL] * gpus)
    assert spots is not None, "counts that fit have places"
    by_gpu: list[list[Assigned]] = [[] for _ in range(gpus)]
    left = {name: list(map(int, row)) for name, row in zip(names, counts, strict=True)}
    for shape, (gpu, start) in sorted(zip(shapes, spots, strict=True), key=lambda s: (s[1][1], s[1][0])):
        index = SHAPES.index(shape)
        model = _spread(by_gpu[gpu], {name: row[index] for name, row in left.items() if row[index]})
        left[model][index] -= 1
        placement = Placement(start, geometry.compute_profiles[index].name)
        by_gpu[gpu].append(Assigned(placement, model, capacities[model][index]))
    return Plan(geometry, tuple(tuple(gpu) for gpu in by_gpu))


def _spread(there: Sequence[Assigned], left: Mapping[str, int]) -> str:
    """Which model gets the next slice of a GPU: the one with fewest replicas there, then with most to place."""
    on_gpu = {name: sum(a.model == name for a in there) for name in left}
    return min(left, key=lambda name: (on_gpu[name], -left[name], name))
