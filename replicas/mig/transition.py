"""From the slices that stand to the slices that are wanted, disturbing the fewest replicas.

Exact: for each GPU every subset of its replicas may stay; what stays, summed over GPUs, and the room that is left
decide everything else, so equal sums are kept once. First everything that is wanted anyway is tried to be kept, then
one less, until the rest finds room. Slices that no wanted replica runs on are reused as they stand where they can be.
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

_MOST_STATES = 30_000


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
    search = _Search(geometry, current, wanted, len(plan.gpus))
    kept, is_fewest = search.most_kept()
    more = _with_idle(geometry, current, kept, wanted)
    return Transition(_steps(geometry, current, more, wanted), is_fewest)


class _Search:
    """Which slices stay with their replicas: as many as can, so that the rest of what is wanted finds room.

    A state is a vector, summed over the GPUs looked at: slices that stay by class (model, profile), the room that is
    left by its six kinds, and GPUs in use.
    """

    def __init__(
        self,
        geometry: Geometry,
        current: Sequence[Sequence[Standing]],
        wanted: Mapping[tuple[str, str], int],
        gpus: int,
    ) -> None:
        there = {(s.model or "", s.placement.profile) for gpu in current for s in gpu}
        self._classes = sorted(there & {key for key, count in wanted.items() if count > 0})
        self._wanted, self._gpus, self._count = wanted, gpus, len(current)
        self._cap = np.array([wanted[c] for c in self._classes], dtype=np.int64)
        names = [p.name for p in geometry.compute_profiles]
        by_profile: Counter[str] = Counter()
        for (_, profile), count in wanted.items():
            by_profile[profile] += count
        self._shapes = np.array([by_profile[name] for name in names], dtype=np.int64)
        to_shape = [[profile == name for name in names] for _, profile in self._classes]
        self._to_shape = np.array(to_shape, dtype=np.int64).reshape(len(self._classes), len(names))
        self._options = [self._options_of(geometry, gpu) for gpu in current]
        most = [vectors[:, : len(self._classes)].max(axis=0) for vectors, _ in self._options]
        # What the GPUs from each one on could still add, at best.
        self._ahead = [
            sum(most[i:], np.zeros(len(self._classes), dtype=np.int64)) for i in range(len(most) + 1)
        ]

    def most_kept(self) -> tuple[list[frozenset[int] | None], bool]:
        """For each GPU the indices that stay, None for one that ends up empty; and whether no more could."""
        ideal = int(np.minimum(self._cap, self._ahead[0]).sum())
        is_exact = True
        for at_least in range(ideal, -1, -1):
            found, was_cut = self._keeping(at_least)
            if found is not None:
                return found, is_exact
            is_exact &= not was_cut
        raise NoTransition(f"what is wanted does not fit on {self._count} GPUs")

    def _keeping(self, at_least: int) -> tuple[list[frozenset[int] | None] | None, bool]:
        """A way to keep so many replicas, if there is one; and whether states were left out."""
        totals = np.zeros((1, len(self._classes) + 7), dtype=np.int64)
        parents: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        was_cut = False
        for index, (vectors, _) in enumerate(self._options):
            sums = (totals[:, None, :] + vectors[None, :, :]).reshape(-1, totals.shape[1])
            rows = _first_of_each(sums, np.nonzero(self._is_open(sums, index + 1, at_least))[0])
            if len(rows) > _MOST_STATES:
                rows, was_cut = rows[np.linspace(0, len(rows) - 1, _MOST_STATES).astype(np.int64)], True
            parents.append((rows // len(vectors), rows % len(vectors)))
            totals = sums[rows]
        done = np.nonzero(self._is_done(totals))[0]
        if len(done) == 0:
            return None, was_cut
        picks, at = [], int(done[0])
        for before, option in reversed(parents):
            picks.append(int(option[at]))
            at = int(before[at])
        return [subsets[n] for n, (_, subsets) in zip(reversed(picks), self._options, strict=True)], was_cut

    def _is_open(self, rows: npt.NDArray[np.int64], looked_at: int, at_least: int) -> npt.NDArray[np.bool_]:
        """States that may still end well: within what is wanted and the GPUs, and with enough to keep ahead."""
        stay = rows[:, : len(self._classes)]
        best = np.minimum(self._cap, stay + self._ahead[looked_at]).sum(axis=1)
        found: npt.NDArray[np.bool_] = (
            (stay <= self._cap).all(axis=1) & (rows[:, -1] <= self._gpus) & (best >= at_least)
        )
        return found

    def _is_done(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the slices that don't stand yet find room."""
        missing = self._shapes - rows[:, : len(self._classes)] @ self._to_shape
        rooms = [Room(*map(int, row[-7:-1])) for row in rows]
        return np.array(
            [bool(room.fits(row)) for room, row in zip(rooms, missing, strict=True)], dtype=np.bool_
        )

    def _options_of(
        self, geometry: Geometry, standing: Sequence[Standing]
    ) -> tuple[npt.NDArray[np.int64], list[frozenset[int] | None]]:
        """Each way to treat one GPU: its vector, and the indices that stay."""
        mine = [i for i, s in enumerate(standing) if (s.model or "", s.placement.profile) in self._classes]
        found: dict[tuple[int, ...], frozenset[int] | None] = {}
        for size in range(len(mine) + 1):
            for stay in combinations(mine, size):
                found.setdefault(self._vector(geometry, [standing[i] for i in stay]), frozenset(stay))
        # Last, so that of equal ways the one that uses the first GPUs is found.
        found[(0,) * (len(self._classes) + 7)] = None
        return np.array(list(found), dtype=np.int64), list(found.values())

    def _vector(self, geometry: Geometry, stay: Sequence[Standing]) -> tuple[int, ...]:
        counts = Counter((s.model or "", s.placement.profile) for s in stay)
        room = Room.in_masks([_free(geometry, stay)])
        kinds = (room.whole, room.lower, room.upper, room.strong, room.weak, room.single)
        return (*(counts[c] for c in self._classes), *kinds, 1)


def _first_of_each(rows: npt.NDArray[np.int64], among: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The indices of distinct rows. No entry exceeds 64, so a mixed sum tells them apart but for a chance of 2⁻⁴⁰."""
    mix = np.random.default_rng(1).integers(1, 2**56, rows.shape[1], dtype=np.int64)
    _, first = np.unique(rows[among] @ mix, return_index=True)
    found: npt.NDArray[np.int64] = among[np.sort(first)]
    return found


def _free(geometry: Geometry, standing: Sequence[Standing]) -> int:
    free = FULL
    for slice_ in standing:
        free &= ~mask_of(geometry.profile(slice_.placement.profile), slice_.placement.start)
    return free


def _with_idle(
    geometry: Geometry,
    current: Sequence[Sequence[Standing]],
    kept: Sequence[frozenset[int] | None],
    wanted: Mapping[tuple[str, str], int],
) -> list[frozenset[int] | None]:
    """Lets slices stay that are idle or serve another model and whose profile is wanted, where the rest still fits."""
    result = list(kept)
    profiles = Counter(profile for (_, profile), count in wanted.items() for _ in range(count))
    for index, gpu in enumerate(current):
        for i in range(len(gpu)):
            keep = result[index]
            if keep is None or i in keep:
                continue
            result[index] = keep | {i}
            if not _rest_fits(geometry, current, result, profiles):
                result[index] = keep
    return result


def _rest_fits(
    geometry: Geometry,
    current: Sequence[Sequence[Standing]],
    kept: Sequence[frozenset[int] | None],
    profiles: Counter[str],
) -> bool:
    """Whether what stays is wanted, by profile, and leaves room for what is missing."""
    stay = [
        [s for i, s in enumerate(gpu) if i in (keep or ())] for gpu, keep in zip(current, kept, strict=True)
    ]
    missing = Counter(profiles)
    missing.subtract(s.placement.profile for gpu in stay for s in gpu)
    if min(missing.values()) < 0:
        return False
    room = Room.in_masks(
        0 if keep is None else _free(geometry, gpu) for gpu, keep in zip(stay, kept, strict=True)
    )
    return bool(room.fits(np.array([missing[p.name] for p in geometry.compute_profiles])))


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
    free = [0 if keep is None else _free(geometry, gpu) for gpu, keep in zip(stay, kept, strict=True)]
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
