"""`graceway plan capacity`: how many replicas a load needs on each size of slice, and how many GPUs that is."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from rich.table import Table

from replicas.mig.geometry import Geometry, Profile
from replicas.mig.need import DEFAULT_REACH, Need, Reach, SliceCapacity, capacity_of, prefill_s, step_s
from replicas.mig.room import SHAPES, Room


@dataclass(frozen=True, slots=True)
class Traffic:
    """What comes in."""

    requests_per_s: float
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the traffic needs on slices of one profile."""

    profile: str
    per_replica: SliceCapacity
    service_s: float
    """A request holds its slot for so long when `utilization` of the slots are taken."""
    replicas: int
    """0 when the model fits no slice of this profile in time."""
    gpus: int


def capacities(
    need: Need,
    traffic: Traffic,
    geometry: Geometry,
    utilization: float = 0.75,
    spares: int = 0,
    reach: Reach = DEFAULT_REACH,
) -> Iterator[Capacity]:
    """For each profile, smallest first. `need.concurrency` is not looked at: it follows from the traffic."""
    need = replace(need, prompt_tokens=traffic.prompt_tokens)
    for index, profile in enumerate(geometry.compute_profiles):
        found = capacity_of(need, geometry, profile, reach)
        if found.slots == 0:
            yield Capacity(profile.name, found, 0.0, 0, 0)
            continue
        service_s = _service_s(
            need, traffic, geometry, profile, max(1, int(found.slots * utilization)), reach
        )
        by_slots = traffic.requests_per_s * service_s / (found.slots * utilization)
        replicas = max(need.min_replicas, ceil(by_slots - 1e-9)) + spares
        yield Capacity(profile.name, found, service_s, replicas, _gpus(index, replicas))


def _service_s(
    need: Need, traffic: Traffic, geometry: Geometry, profile: Profile, batch: int, reach: Reach
) -> float:
    """A prompt's prefill, then its tokens one a step, each step held up by the prefills of the others.

    While `batch` sequences decode, as many prompts come in as sequences end, so each sequence sees `batch` prefills
    during its life: the slot is held for (1 + batch) prefills and the steps.
    """
    prefills_s = (1 + batch) * prefill_s(need, geometry, profile, reach)
    return prefills_s + traffic.answer_tokens * step_s(need, batch, geometry, profile, reach)


def _gpus(shape: int, replicas: int) -> int:
    counts = np.zeros(len(SHAPES), dtype=np.int64)
    counts[shape] = replicas
    gpus = 1
    while not Room(whole=gpus).fits(counts):
        gpus += 1
    return gpus


def as_table(rows: Iterator[Capacity]) -> Table:
    """For a terminal."""
    table = Table("slice", "slots", "KV tokens", "limited by", "seconds a request", "replicas", "GPUs")
    for row in rows:
        found = row.per_replica
        if row.replicas == 0:
            table.add_row(row.profile, "-", str(found.kv_tokens), found.limited_by, "-", "-", "-")
            continue
        table.add_row(
            row.profile,
            str(found.slots),
            f"{found.kv_tokens:,}",
            found.limited_by,
            f"{row.service_s:.1f}",
            str(row.replicas),
            str(row.gpus),
        )
    return table
