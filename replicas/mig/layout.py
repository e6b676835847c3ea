"""Which slices may stand side by side on one GPU: a layout is a set of placements, legal or refused with a reason."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from replicas.mig.geometry import COMPUTE_SLICES, MEMORY_SLICES, Geometry, Profile


@dataclass(frozen=True, slots=True, order=True)
class Placement:
    """A slice at its place: it covers `memory_slices` of its profile from `start` on."""

    start: int
    profile: str

    def __str__(self) -> str:
        return f"{self.profile}:{self.start}"


Layout: TypeAlias = tuple[Placement, ...]


def mask_of(profile: Profile, start: int) -> int:
    """The memory slices that it covers, as bits."""
    return ((1 << profile.memory_slices) - 1) << start


def fault_of(geometry: Geometry, layout: Iterable[Placement]) -> str | None:
    """Why these placements can't stand together on one GPU; None when they can."""
    holder: dict[int, Placement] = {}
    compute = media = 0
    for placement in layout:
        if placement.profile not in geometry.profiles:
            return f"{geometry.gpu} has no profile {placement.profile}"
        profile = geometry.profiles[placement.profile]
        if placement.start not in profile.starts:
            legal = ", ".join(map(str, profile.starts))
            return f"{placement.profile} can't start at {placement.start}, only at {legal}"
        for memory_slice in range(placement.start, placement.start + profile.memory_slices):
            if memory_slice in holder:
                return f"{placement} and {holder[memory_slice]} both need memory slice {memory_slice}"
            holder[memory_slice] = placement
        compute += profile.compute_slices
        media += profile.has_media_engines
    if compute > COMPUTE_SLICES:
        return f"needs {compute} compute slices of {COMPUTE_SLICES}"
    return "only one slice can have the media engines" if media > 1 else None


def arrange(
    geometry: Geometry, profiles: Sequence[str], free: int = (1 << MEMORY_SLICES) - 1
) -> Layout | None:
    """Places for all of these profiles within the `free` memory slices; None when there are none.

    Exact: largest first, each start tried, so it finds places whenever some exist.
    """
    largest_first = sorted(
        map(geometry.profile, profiles), key=lambda p: (-p.memory_slices, -p.compute_slices)
    )
    if sum(p.compute_slices for p in largest_first) > COMPUTE_SLICES:
        return None
    if sum(p.has_media_engines for p in largest_first) > 1:
        return None
    return _arrange(largest_first, free)


def _arrange(profiles: list[Profile], free: int) -> Layout | None:
    if not profiles:
        return ()
    first, rest = profiles[0], profiles[1:]
    # From the end: the last memory slices are the ones that fewest profiles can use.
    for start in reversed(first.starts):
        mask = mask_of(first, start)
        if mask & ~free == 0 and (placed := _arrange(rest, free & ~mask)) is not None:
            return tuple(sorted((Placement(start, first.name), *placed)))
    return None


def refusal_of(geometry: Geometry, profiles: Sequence[str]) -> str | None:
    """Why these profiles don't fit on one GPU together, wherever they start; None when they do."""
    chosen = [geometry.profile(name) for name in profiles]
    for name, count in Counter(profiles).items():
        if count > (most := geometry.profiles[name].max_instances):
            return f"{count} × {name}: {geometry.gpu} holds {most}"
    if (memory := sum(p.memory_slices for p in chosen)) > MEMORY_SLICES:
        return f"needs {memory} memory slices of {MEMORY_SLICES}"
    if (compute := sum(p.compute_slices for p in chosen)) > COMPUTE_SLICES:
        return f"needs {compute} compute slices of {COMPUTE_SLICES}"
    if arrange(geometry, profiles) is None:
        return f"no places leave {_counted(profiles)} apart: starts are fixed per profile"
    return None


def multisets(geometry: Geometry) -> frozenset[tuple[str, ...]]:
    """Every set of compute profiles that fits on one GPU, each sorted by name. The empty one is not among them."""
    return frozenset(tuple(sorted(p.profile for p in layout)) for layout in layouts(geometry) if layout)


def maximal(sets: Iterable[tuple[str, ...]]) -> frozenset[tuple[str, ...]]:
    """Those to which no slice can be added."""
    counted = {names: Counter(names) for names in sets}
    return frozenset(
        names for names, count in counted.items() if not any(other > count for other in counted.values())
    )


def layouts(geometry: Geometry) -> Iterator[Layout]:
    """Every legal layout of compute profiles, the empty one first."""
    choices = [(p, start, mask_of(p, start)) for p in geometry.compute_profiles for start in p.starts]
    yield from _extend((), choices, 0)


def _extend(layout: Layout, choices: list[tuple[Profile, int, int]], used: int) -> Iterator[Layout]:
    yield layout
    for index, (profile, start, mask) in enumerate(choices):
        if not used & mask:
            yield from _extend((*layout, Placement(start, profile.name)), choices[index + 1 :], used | mask)


def creation_order(geometry: Geometry, layout: Iterable[Placement]) -> Layout:
    """The placements in an order in which a driver that is told each start can create them: largest first.

    Told no start, a driver picks one itself, and may pick one that leaves no place for the rest: seven
    compute slices as 3g + 4 × 1g exist only with the 3g at 4. So commands always name the start, and where a
    tool can't (mig-parted tries orders until one works), largest first is the order that works most often.
    Raises ValueError with the reason for an illegal layout.
    """
    placements = tuple(layout)
    if (fault := fault_of(geometry, placements)) is not None:
        raise ValueError(fault)
    return tuple(
        sorted(placements, key=lambda p: (-geometry.profiles[p.profile].memory_slices, p.profile, p.start))
    )


def _counted(names: Iterable[str]) -> str:
    return " + ".join(f"{count} × {name}" for name, count in sorted(Counter(names).items()))
