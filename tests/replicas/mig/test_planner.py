"""Plans, against a brute force over layouts of the table."""

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

from replicas.mig.geometry import GEOMETRIES, GIB
from replicas.mig.layout import fault_of, layouts
from replicas.mig.need import Need, Slo
from replicas.mig.planner import NoPlan, cheapest_counts, plan
from replicas.mig.room import SHAPES

H200 = GEOMETRIES["H200-141GB"]
MEMORY = {"1g": 1, "1g+mem": 2, "2g": 2, "3g": 4, "4g": 4, "7g": 8}
COMPUTE = {"1g": 1, "1g+mem": 1, "2g": 2, "3g": 3, "4g": 4, "7g": 7}
SHAPE = {p.name: p.shape for p in H200.compute_profiles}


@cache
def sharings(models: int) -> np.ndarray:
    """Every way to give the slices of one GPU to models: counts by model and shape, once each."""
    found = {np.zeros((models, 6), dtype=int).tobytes()}
    for layout in layouts(H200):
        shares = {np.zeros((models, 6), dtype=int).tobytes()}
        for placement in layout:
            shape = SHAPES.index(SHAPE[placement.profile])
            grown = set()
            for share in shares:
                for model in range(models):
                    counts = np.frombuffer(share, dtype=int).reshape(models, 6).copy()
                    counts[model, shape] += 1
                    grown.add(counts.tobytes())
            shares = grown
        found |= shares
    return np.array([np.frombuffer(share, dtype=int).reshape(models, 6) for share in sorted(found)])


def costs_of(counts: np.ndarray) -> np.ndarray:
    """(GPUs used, memory, compute, replicas) of counts by model and shape; GPUs as 0 or 1."""
    totals = counts.sum(axis=-2)
    memory = totals @ np.array([MEMORY[s] for s in SHAPES])
    compute = totals @ np.array([COMPUTE[s] for s in SHAPES])
    return np.stack([(memory > 0).astype(int), memory, compute, totals.sum(axis=-1)], axis=-1)


def brute_force(slots: Sequence[np.ndarray], wanted: Sequence[int], least: Sequence[int], gpus: int):  # type: ignore[no-untyped-def]
    """The least cost over everything that two GPUs can be; None when nothing carries the load."""
    one = sharings(len(slots))
    carried = np.stack([one[:, m] @ slots[m] for m in range(len(slots))], axis=1)
    # A slice that carries nothing is no replica.
    replicas = np.stack([one[:, m] @ (slots[m] > 0) for m in range(len(slots))], axis=1)
    cost = costs_of(one)
    best = None
    for index in range(len(one)) if gpus == 2 else [0]:
        enough = ((carried + carried[index] * (gpus == 2)) >= wanted).all(axis=1)
        enough &= ((replicas + replicas[index] * (gpus == 2)) >= least).all(axis=1)
        if enough.any():
            sums = cost[enough] + cost[index] * (gpus == 2)
            found = tuple(map(int, sums[np.lexsort(sums.T[::-1])[0]]))
            best = found if best is None else min(best, found)
    return best


def a_case(rng: random.Random, models: int, gpus: int):  # type: ignore[no-untyped-def]
    slots, wanted, least = [], [], []
    for _ in range(models):
        sizes = [rng.choice([0, 0, rng.randint(1, 6)])]
        for _ in range(5):
            sizes.append(
                sizes[-1] + rng.choice([0, rng.randint(0, 4), rng.randint(0, 12)]) - rng.choice([0, 0, 1])
            )
        slots.append(np.maximum(0, np.array(sizes)))
        wanted.append(rng.randint(1, max(2, int(slots[-1].max() * gpus * rng.choice([0.3, 0.8, 1.5])))))
        least.append(rng.choice([1, 1, 1, 2, 3]))
    return slots, wanted, least


@pytest.mark.parametrize(("models", "gpus", "cases"), [(1, 1, 300), (2, 1, 300), (3, 1, 100), (1, 2, 300)])
def test_a_thousand_random_cases_are_optimal(models: int, gpus: int, cases: int) -> None:
    rng = random.Random(models * 10 + gpus)
    solved = 0
    for _ in range(cases):
        case = a_case(rng, models, gpus)
        expected = brute_force(*case, gpus)
        counts = cheapest_counts(*case, gpus)
        if expected is None:
            assert counts is None, case
            continue
        solved += 1
        assert counts is not None, case
        assert tuple(map(int, costs_of(counts)))[1:] == expected[1:], case
    assert solved > cases / 8


def test_two_models_on_two_gpus_are_optimal() -> None:
    rng = random.Random(7)
    for _ in range(12):
        case = a_case(rng, 2, 2)
        expected = brute_force(*case, 2)
        counts = cheapest_counts(*case, 2)
        assert (counts is None) == (expected is None), case
        if counts is not None:
            assert tuple(map(int, costs_of(counts)))[1:] == expected[1:], case


LLAMA_8B = Need("8b", 16 * GIB, 131_072, 8192, 40, Slo(itl_s=0.05))
SMALL = Need("small", GIB, 24_576, 4096, 200)


def test_a_plan_carries_the_load_on_legal_layouts() -> None:
    found = plan([LLAMA_8B, SMALL], H200, 8)
    assert found.slots("8b") >= 40
    assert found.slots("small") >= 200
    for gpu in found.gpus:
        assert fault_of(H200, [a.placement for a in gpu]) is None
    assert found.cost[0] == len(found.gpus) == 1


def test_a_tighter_slo_costs_more() -> None:
    def cost(itl_s: float) -> tuple[int, ...]:
        need = Need("8b", 16 * GIB, 131_072, 8192, 64, Slo(itl_s=itl_s))
        return plan([need], H200, 8).cost

    assert cost(0.2) < cost(0.02)


def test_replicas_of_a_model_are_spread_over_gpus() -> None:
    both = [
        Need("a", 60 * GIB, 131_072, 8192, 1, min_replicas=2),
        Need("b", 60 * GIB, 131_072, 8192, 1, min_replicas=2),
    ]
    found = plan(both, H200, 4)
    assert found.cost[0] == 2
    assert all({a.model for a in gpu} == {"a", "b"} for gpu in found.gpus)


@pytest.mark.parametrize(
    ("need", "said"),
    [
        (Need("huge", 200 * GIB, 131_072, 8192, 1), "huge fits no slice of H200-141GB: on 7g.141gb, its weights"),
        (Need("slow", 100 * GIB, 131_072, 8192, 1, Slo(itl_s=0.001)), "one step takes longer than the SLO's itl_s"),
        (Need("long", 16 * GIB, 131_072, 8192, 1, Slo(ttft_s=0.01), 8000), "its prompt takes longer"),
        (Need("many", 16 * GIB, 131_072, 8192, 10_000), "2 × H200-141GB can't carry many together"),
    ],
)  # fmt: skip
def test_no_plan_says_why(need: Need, said: str) -> None:
    with pytest.raises(NoPlan, match=said):
        plan([need], H200, 2)
