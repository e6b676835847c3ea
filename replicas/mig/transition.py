"""From the slices that stand to the slices that are wanted, disturbing the fewest replicas.

Exact: for each GPU every subset of its slices may stay; what stays, summed over GPUs, and the room that is left
decide everything else, so equal sums are kept once. Of the ways that disturb fewest replicas, one that destroys
fewest instances is taken.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from replicas.mig.geometry import Geometry
from replicas.mig.layout import Placement, creation_order, fault_of, mask_of
from replicas.mig.planner import Plan
from replicas.mig.room import FULL, Room, place_all

_MOST_STATES = 200_000


@dataclass(frozen=True, slots=True)
class Standing:
    """A slice that exists."""

    placement: Placement
    model: str | None = None
    """Whose replica runs on it; None while it is idle."""
    instance_id: int | None = None
    """The driver's id of the GPU instance, where known."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A slice as it is to be, with the model that it serves."""

    placement: Placement
    model: str


@dataclass(frozen=True, slots=True)
class GpuSteps:
    """What happens on one GPU, in this order: replicas drain, slices are destroyed, slices are created."""

    gpu: int
    kept: tuple[Wanted, ...]
    destroyed: tuple[Standing, ...]
    created: tuple[Wanted, ...]
    drained: tuple[Standing, ...]
    """Slices whose replica must end: the destroyed ones, and those that another model takes over as they stand."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The steps for every GPU. `is_fewest` is False when the search was cut short, which takes hundreds of slices."""

    gpus: tuple[GpuSteps, ...]
    is_fewest: bool = True

    @property
    def disturbed(self) -> int:
        """Replicas that run now and end."""
        return sum(len(gpu.drained) for gpu in self.gpus)

    @property
    def destroyed(self) -> int:
        return sum(len(gpu.destroyed) for gpu in self.gpus)


class NoTransition(Exception):  # noqa: N818 - an answer that callers show
    """What stands is not legal, or what is wanted does not fit on these GPUs."""


def transition(current: Sequence[Sequence[Standing]], plan: Plan) -> Transition:
    """Steps from `current`, by GPU, to the plan's slices on at most as many GPUs as the plan uses.

    Which GPU gets which slices is free, since GPUs of a kind are alike. Raises `NoTransition`.
    """
    geometry = plan.geometry
    for gpu, standing in enumerate(current):
        if (fault := fault_of(geometry, [s.placement for s in standing])) is not None:
            raise NoTransition(f"GPU {gpu} as it stands: {fault}")
    wanted = Counter((a.model, a.placement.profile) for gpu in plan.gpus for a in gpu)
    kept, is_fewest = _kept(geometry, current, wanted, len(plan.gpus))
    return Transition(_steps(geometry, current, kept, wanted), is_fewest)


def _kept(
    geometry: Geometry,
    current: Sequence[Sequence[Standing]],
    wanted: Mapping[tuple[str, str], int],
    gpus: int,
) -> tuple[list[frozenset[int] | None], bool]:
    """For each GPU the indices of the slices that stay; None for a GPU that ends up empty."""
    search = _Search(geometry, current, wanted, gpus)
    totals = np.zeros((1, search.width), dtype=np.int64)
    parents: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
    is_fewest = True
    for vectors, _ in search.options:
        sums = (totals[:, None, :] + vectors[None, :, :]).reshape(-1, search.width)
        possible = np.nonzero(search.may_still_do(sums))[0]
        _, first = np.unique(sums[possible], axis=0, return_index=True)
        rows = possible[first]
        if len(rows) > _MOST_STATES:
            rows, is_fewest = rows[np.argsort(-search.worth(sums[rows]), kind="stable")[:_MOST_STATES]], False
        parents.append((rows // len(vectors), rows % len(vectors)))
        totals = sums[rows]
    done = np.nonzero(search.is_done(totals))[0]
    if len(done) == 0:
        raise NoTransition(f"what is wanted does not fit on {len(current)} GPUs")
    at = int(done[np.argmax(search.worth(totals[done]))])
    picks: list[int] = []
    for before, option in reversed(parents):
        picks.append(int(option[at]))
        at = int(before[at])
    return [
        subsets[pick] for pick, (_, subsets) in zip(reversed(picks), search.options, strict=True)
    ], is_fewest


class _Search:
    """Vectors of what stays: slices by class (model or None, profile), room by its six kinds, and GPUs in use."""

    def __init__(
        self,
        geometry: Geometry,
        current: Sequence[Sequence[Standing]],
        wanted: Mapping[tuple[str, str], int],
        gpus: int,
    ) -> None:
        classes = sorted(
            {(s.model, s.placement.profile) for gpu in current for s in gpu}, key=lambda c: (c[0] or "", c[1])
        )
        self.width = len(classes) + 7
        self._classes, self._gpus = classes, gpus
        self._cap = np.array(
            [wanted.get((m, p), 0) if m is not None else 0 for m, p in classes], dtype=np.int64
        )
        names = [p.name for p in geometry.compute_profiles]
        by_profile: Counter[str] = Counter()
        for (_, profile), count in wanted.items():
            by_profile[profile] += count
        self._wanted = np.array([by_profile[name] for name in names], dtype=np.int64)
        self._to_shape = np.array(
            [[profile == name for name in names] for _, profile in classes], dtype=np.int64
        )
        self._to_shape = self._to_shape.reshape(len(classes), len(names))
        self.options = [self._options(geometry, gpu) for gpu in current]

    def _options(
        self, geometry: Geometry, standing: Sequence[Standing]
    ) -> tuple[npt.NDArray[np.int64], list[frozenset[int] | None]]:
        """Each way to treat one GPU: its vector, and the indices that stay."""
        found: dict[tuple[int, ...], frozenset[int] | None] = {(0,) * self.width: None}
        for size in range(len(standing) + 1):
            for stay in combinations(range(len(standing)), size):
                found.setdefault(self._vector(geometry, [standing[i] for i in stay]), frozenset(stay))
        return np.array(list(found), dtype=np.int64), list(found.values())

    def _vector(self, geometry: Geometry, stay: Sequence[Standing]) -> tuple[int, ...]:
        counts = Counter((s.model, s.placement.profile) for s in stay)
        free = FULL
        for slice_ in stay:
            free &= ~mask_of(geometry.profile(slice_.placement.profile), slice_.placement.start)
        room = Room.in_masks([free])
        kinds = (room.whole, room.lower, room.upper, room.strong, room.weak, room.single)
        return (*(counts[c] for c in self._classes), *kinds, 1)

    def may_still_do(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """No more slices of a profile than wanted, and not too many GPUs."""
        return (self._missing(rows) >= 0).all(axis=1) & (rows[:, -1] <= self._gpus)

    def is_done(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the slices that don't stand yet find room."""
        missing = self._missing(rows)
        rooms = [Room(*map(int, row[-7:-1])) for row in rows]
        return np.array(
            [bool(room.fits(row)) for room, row in zip(rooms, missing, strict=True)], dtype=np.bool_
        )

    def worth(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Replicas that stay, then slices that do."""
        stay = rows[:, : len(self._classes)]
        found: npt.NDArray[np.int64] = np.minimum(stay, self._cap).sum(axis=1) * 1000 + stay.sum(axis=1)
        return found

    def _missing(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return self._wanted - rows[:, : len(self._classes)] @ self._to_shape


def _steps(
    geometry: Geometry,
    current: Sequence[Sequence[Standing]],
    kept: Sequence[frozenset[int] | None],
    wanted: Mapping[tuple[str, str], int],
) -> tuple[GpuSteps, ...]:
    left = Counter(wanted)
    stay = [
        [s for i, s in enumerate(gpu) if i in (keep or ())] for gpu, keep in zip(current, kept, strict=True)
    ]
    homes = [_settle(gpu, left) for gpu in stay]
    for standing, home in zip(stay, homes, strict=True):
        _take_over(standing, home, left)
    created = _created(geometry, stay, kept, left)
    steps = []
    for index, gpu in enumerate(current):
        destroyed = tuple(s for s in gpu if s not in stay[index])
        moved = [s for s, m in zip(stay[index], homes[index], strict=True) if s.model not in (None, m)]
        steps.append(
            GpuSteps(
                index,
                tuple(Wanted(s.placement, m or "") for s, m in zip(stay[index], homes[index], strict=True)),
                destroyed,
                created[index],
                (*(s for s in destroyed if s.model is not None), *moved),
            )
        )
    return tuple(steps)


def _settle(stay: Sequence[Standing], left: Counter[tuple[str, str]]) -> list[str | None]:
    """The model of each slice that stays with its replica; None for one that gets another."""
    homes: list[str | None] = []
    for slice_ in stay:
        key = (slice_.model or "", slice_.placement.profile)
        is_home = left[key] > 0
        left[key] -= is_home
        homes.append(slice_.model if is_home else None)
    return homes


def _take_over(stay: Sequence[Standing], homes: list[str | None], left: Counter[tuple[str, str]]) -> None:
    """Gives slices that stay without a replica to models that want their profile."""
    for index, slice_ in enumerate(stay):
        if homes[index] is None:
            model = next(m for (m, p), n in sorted(left.items()) if n > 0 and p == slice_.placement.profile)
            left[model, slice_.placement.profile] -= 1
            homes[index] = model


def _created(
    geometry: Geometry,
    stay: Sequence[Sequence[Standing]],
    kept: Sequence[frozenset[int] | None],
    left: Mapping[tuple[str, str], int],
) -> list[tuple[Wanted, ...]]:
    free = []
    for gpu, keep in zip(stay, kept, strict=True):
        mask = 0 if keep is None else FULL
        for slice_ in gpu:
            mask &= ~mask_of(geometry.profile(slice_.placement.profile), slice_.placement.start)
        free.append(mask)
    slices = [key for key, count in sorted(left.items()) for _ in range(count)]
    spots = place_all([geometry.profile(p).shape for _, p in slices], free)
    assert spots is not None, "the search only ends where the rest fits"
    created: list[list[Wanted]] = [[] for _ in stay]
    for (model, profile), (gpu_index, start) in zip(slices, spots, strict=True):
        created[gpu_index].append(Wanted(Placement(start, profile), model))
    return [_in_order(geometry, wanted) for wanted in created]


def _in_order(geometry: Geometry, created: Sequence[Wanted]) -> tuple[Wanted, ...]:
    by_place = {w.placement: w for w in created}
    return tuple(by_place[p] for p in creation_order(geometry, by_place))
