"""Transitions, against a brute force over every placement of what is wanted."""

import random
from collections import Counter
from functools import cache

import pytest
from ruamel.yaml import YAML

from replicas.mig.commands import mig_parted, nvidia_smi
from replicas.mig.geometry import GEOMETRIES
from replicas.mig.layout import Placement, fault_of, layouts
from replicas.mig.need import SliceCapacity
from replicas.mig.planner import Assigned, Plan
from replicas.mig.transition import NoTransition, Standing, Transition, transition

H200 = GEOMETRIES["H200-141GB"]


def a_plan(*gpus: str) -> Plan:
    """`4g.71gb:0=a 3g.71gb:4=b` for each GPU."""
    return Plan(H200, tuple(tuple(_assigned(word) for word in gpu.split()) for gpu in gpus))


def _assigned(word: str) -> Assigned:
    place, model = word.split("=")
    profile, start = place.split(":")
    return Assigned(Placement(int(start), profile), model, SliceCapacity(profile, 1, 1, 1.0, "memory"))


def standing(gpu: str) -> list[Standing]:
    """The same, `=` left out or empty for an idle slice."""
    slices = []
    for number, word in enumerate(gpu.split(), start=1):
        place, _, model = word.partition("=")
        profile, start = place.split(":")
        slices.append(Standing(Placement(int(start), profile), model or None, number))
    return slices


@cache
def every_layout() -> tuple[tuple[Placement, ...], ...]:
    return tuple(layouts(H200))


def fewest_disturbed(current: list[list[Standing]], plan: Plan) -> int:
    """By trying every pair of layouts that have the wanted profiles; two GPUs."""
    wanted = Counter((a.model, a.placement.profile) for gpu in plan.gpus for a in gpu)
    profiles = Counter(a.placement.profile for gpu in plan.gpus for a in gpu)
    running = sum(s.model is not None for gpu in current for s in gpu)
    by_counts: dict[tuple[tuple[str, int], ...], list[tuple[Placement, ...]]] = {}
    for layout in every_layout():
        by_counts.setdefault(tuple(sorted(Counter(p.profile for p in layout).items())), []).append(layout)
    best = running
    for counts, first in by_counts.items():
        rest = profiles - Counter(dict(counts))
        if Counter(dict(counts)) - profiles or (len(plan.gpus) == 1 and counts and rest):
            continue
        kept_second = {
            _kept(current[1], layout, wanted) for layout in by_counts.get(tuple(sorted(rest.items())), [])
        }
        for kept_first in {_kept(current[0], layout, wanted) for layout in first}:
            for other in kept_second:
                both = Counter(kept_first) + Counter(other)
                best = min(best, running - sum(min(n, wanted[key]) for key, n in both.items()))
    return best


def _kept(gpu: list[Standing], layout: tuple[Placement, ...], wanted: Counter[tuple[str, str]]):  # type: ignore[no-untyped-def]
    return tuple((s.model, s.placement.profile) for s in gpu if s.model and s.placement in layout)


def check(current: list[list[Standing]], plan: Plan, done: Transition) -> None:
    """The steps end in exactly the plan's slices, legal at every step, and count what they disturb."""
    ends: Counter[tuple[str, str]] = Counter()
    drained = 0
    for steps, before in zip(done.gpus, current, strict=True):
        kept = [w.placement for w in steps.kept]
        assert sorted(kept + [s.placement for s in steps.destroyed]) == sorted(s.placement for s in before)
        there = list(kept)
        for created in steps.created:
            there.append(created.placement)
            assert fault_of(H200, there) is None
        after = {w.placement: w.model for w in (*steps.kept, *steps.created)}
        ends.update((model, place.profile) for place, model in after.items())
        drained += sum(s.model is not None and after.get(s.placement) != s.model for s in before)
    assert ends == Counter((a.model, a.placement.profile) for gpu in plan.gpus for a in gpu)
    assert drained == done.disturbed
    assert sum(bool(s.kept or s.created) for s in done.gpus) <= len(plan.gpus)


def a_random_gpu(rng: random.Random, most: int = 9) -> list[tuple[Placement, str]]:
    layout = rng.choice([item for item in every_layout() if len(item) <= most])
    return [(place, rng.choice("ab")) for place in layout]


def test_random_transitions_disturb_as_few_as_any() -> None:
    rng = random.Random(3)
    some_kept = 0
    for _ in range(60):
        current = [
            [Standing(place, rng.choice([model, model, None])) for place, model in a_random_gpu(rng)]
            for _ in range(2)
        ]
        gpus = [a_random_gpu(rng) or [(Placement(0, "7g.141gb"), "a")] for _ in range(rng.choice([1, 2, 2]))]
        plan = Plan(H200, tuple(tuple(_assigned(f"{place}={model}") for place, model in gpu) for gpu in gpus))
        done = transition(current, plan)
        check(current, plan, done)
        assert done.is_fewest
        assert done.disturbed == fewest_disturbed(current, plan)
        some_kept += any(steps.kept for steps in done.gpus)
    assert some_kept > 20


def test_eight_gpus_are_searched_to_the_end() -> None:
    rng = random.Random(5)
    for _ in range(10):
        current = [
            [Standing(place, rng.choice("abc")) for place in rng.choice(every_layout())] for _ in range(8)
        ]
        gpus = [rng.choice(every_layout()[1:]) for _ in range(8)]
        plan = Plan(H200, tuple(tuple(_assigned(f"{p}={rng.choice('abc')}") for p in gpu) for gpu in gpus))
        done = transition(current, plan)
        check(current, plan, done)
        assert done.is_fewest


@pytest.mark.parametrize(
    ("now", "then", "disturbed", "destroyed"),
    [
        # What is there and wanted stays, wherever the plan drew it.
        (["4g.71gb:0=a 3g.71gb:4=b", ""], ["3g.71gb:0=b", "4g.71gb:0=a"], 0, 0),
        # A 3g at 0 must move for a 4g, though a 3g is wanted too.
        (["3g.71gb:0=a"], ["4g.71gb:0=b 3g.71gb:4=a"], 1, 1),
        # Two 1g in different halves: the one in the lower half stays when a 3g is to come.
        (["1g.18gb:0=a 1g.18gb:5=a"], ["3g.71gb:4=b 1g.18gb:0=a"], 1, 1),
        # An idle slice is in nobody's way when it is wanted as it is.
        (["2g.35gb:0 2g.35gb:2=a"], ["2g.35gb:0=b 2g.35gb:2=a"], 0, 0),
        # Another model takes the slice over as it stands: the replica ends, the instance doesn't.
        (["7g.141gb:0=a"], ["7g.141gb:0=b"], 1, 0),
        # Everything goes onto one GPU because the plan has one.
        (["1g.18gb:0=a", "1g.18gb:0=a"], ["1g.18gb:0=a 1g.18gb:1=a"], 1, 1),
        ([""], ["7g.141gb:0=a"], 0, 0),
    ],
)  # fmt: skip
def test_what_can_stay_stays(now: list[str], then: list[str], disturbed: int, destroyed: int) -> None:
    current, plan = [standing(gpu) for gpu in now], a_plan(*then)
    done = transition(current, plan)
    check(current, plan, done)
    assert (done.disturbed, done.destroyed) == (disturbed, destroyed)


def test_refuses_what_cannot_be() -> None:
    with pytest.raises(NoTransition, match=r"GPU 0 as it stands: 2g\.35gb can't start at 1"):
        transition([standing("2g.35gb:1=a")], a_plan("7g.141gb:0=a"))
    with pytest.raises(NoTransition, match="does not fit on 1 GPUs"):
        transition([[]], a_plan("7g.141gb:0=a", "7g.141gb:0=a"))


def test_commands_name_starts_and_drain_first() -> None:
    done = transition(
        [standing("3g.71gb:0=chat 1g.18gb:4=small")], a_plan("4g.71gb:0=chat 1g.18gb:4=small 1g.18gb:5=small")
    )
    assert nvidia_smi(done) == [
        "# GPU 0: drain chat on 3g.71gb:0 first",
        "nvidia-smi mig -i 0 -dci -gi 1",
        "nvidia-smi mig -i 0 -dgi -gi 1",
        "nvidia-smi mig -i 0 -cgi 4g.71gb:0,1g.18gb:5 -C",
    ]


def test_commands_turn_mig_on_where_nothing_stands_and_say_whose_id_is_missing() -> None:
    assert nvidia_smi(transition([[]], a_plan("7g.141gb:0=a"))) == [
        "nvidia-smi -i 0 -mig 1",
        "nvidia-smi mig -i 0 -cgi 7g.141gb:0 -C",
    ]
    unknown = [[Standing(Placement(0, "4g.71gb"), None)]]
    assert "nvidia-smi mig -i 0 -dgi -gi <id of 4g.71gb:0>" in nvidia_smi(
        transition(unknown, a_plan("7g.141gb:0=a"))
    )


def test_mig_parted_groups_alike_gpus() -> None:
    text = mig_parted(
        a_plan("3g.71gb:4=a 1g.18gb:0=b 1g.18gb:1=b", "3g.71gb:4=a 1g.18gb:0=b 1g.18gb:1=b", "7g.141gb:0=a")
    )
    assert YAML(typ="safe").load(text) == {
        "version": "v1",
        "mig-configs": {
            "graceway": [
                {"devices": [0, 1], "mig-enabled": True, "mig-devices": {"3g.71gb": 1, "1g.18gb": 2}},
                {"devices": [2], "mig-enabled": True, "mig-devices": {"7g.141gb": 1}},
            ]
        },
    }
