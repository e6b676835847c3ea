"""Legality of layouts, against an enumeration that shares nothing with the code under test."""

from itertools import combinations_with_replacement, permutations, product

import pytest

from replicas.mig.geometry import GEOMETRIES
from replicas.mig.layout import (
    Placement,
    arrange,
    creation_order,
    fault_of,
    layouts,
    maximal,
    multisets,
    refusal_of,
)

H200 = GEOMETRIES["H200-141GB"]
NAMES = [p.name for p in H200.compute_profiles]
# Once more, by hand: (compute, memory, starts).
RULES = {
    "1g.18gb": (1, 1, range(7)),
    "1g.35gb": (1, 2, range(0, 8, 2)),
    "2g.35gb": (2, 2, (0, 2, 4)),
    "3g.71gb": (3, 4, (0, 4)),
    "4g.71gb": (4, 4, (0,)),
    "7g.141gb": (7, 8, (0,)),
}


def every_multiset() -> list[tuple[str, ...]]:
    return [names for size in range(1, 9) for names in combinations_with_replacement(sorted(NAMES), size)]


def fits_somehow(names: tuple[str, ...], used: frozenset[int] = frozenset()) -> bool:
    if not names:
        return True
    _, size, starts = RULES[names[0]]
    places = (frozenset(range(start, start + size)) for start in starts)
    return any(not place & used and fits_somehow(names[1:], used | place) for place in places)


def is_legal(names: tuple[str, ...]) -> bool:
    return sum(RULES[n][0] for n in names) <= 7 and fits_somehow(names)


def test_h200_has_77_layouts_of_which_28_take_nothing_more() -> None:
    assert len(multisets(H200)) == 77
    assert len(maximal(multisets(H200))) == 28


@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=lambda g: g.gpu)
def test_every_kind_has_as_many(geometry) -> None:  # type: ignore[no-untyped-def]
    assert len(multisets(geometry)) == 77


def test_each_of_3002_sets_of_profiles_is_accepted_or_refused_with_a_reason() -> None:
    candidates = every_multiset()
    assert len(candidates) == 3002
    accepted = {names for names in candidates if refusal_of(H200, names) is None}
    assert accepted == {names for names in candidates if is_legal(names)} == multisets(H200)
    assert all(refusal_of(H200, names) for names in candidates if names not in accepted)


def test_arranged_profiles_are_all_there_and_legal() -> None:
    for names in multisets(H200):
        layout = arrange(H200, names)
        assert layout is not None
        assert sorted(p.profile for p in layout) == sorted(names)
        assert fault_of(H200, layout) is None


def test_every_pair_of_placements_is_judged_by_overlap_alone() -> None:
    every = [Placement(start, name) for name in NAMES for start in RULES[name][2]]
    for one, other in product(every, repeat=2):
        spans = [set(range(p.start, p.start + RULES[p.profile][1])) for p in (one, other)]
        assert (fault_of(H200, (one, other)) is None) == (not spans[0] & spans[1])


def test_every_enumerated_layout_is_legal_and_none_comes_twice() -> None:
    every = [tuple(sorted(layout)) for layout in layouts(H200)]
    assert len(set(every)) == len(every)
    assert all(fault_of(H200, layout) is None for layout in every)


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ([Placement(0, "1g.10gb")], "H200-141GB has no profile 1g.10gb"),
        ([Placement(1, "2g.35gb")], "2g.35gb can't start at 1, only at 0, 2, 4"),
        ([Placement(7, "1g.18gb")], "1g.18gb can't start at 7, only at 0, 1, 2, 3, 4, 5, 6"),
        ([Placement(4, "4g.71gb")], "4g.71gb can't start at 4, only at 0"),
        ([Placement(0, "3g.71gb"), Placement(3, "1g.18gb")], "1g.18gb:3 and 3g.71gb:0 both need memory slice 3"),
        ([Placement(0, "1g.18gb+me"), Placement(1, "1g.18gb+me")], "only one slice can have the media engines"),
        ([Placement(0, "1g.18gb+me"), Placement(4, "3g.71gb")], None),
        ([Placement(0, "4g.71gb"), Placement(4, "3g.71gb")], None),
        ([], None),
    ],
)  # fmt: skip
def test_an_illegal_layout_says_why(layout: list[Placement], reason: str | None) -> None:
    assert fault_of(H200, layout) == reason


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["4g.71gb", "4g.71gb"], "2 × 4g.71gb: H200-141GB holds 1"),
        (["7g.141gb", "1g.18gb"], "needs 9 memory slices of 8"),
        (["3g.71gb", "3g.71gb", "1g.18gb"], "needs 9 memory slices of 8"),
        (["2g.35gb"] * 3 + ["1g.18gb"] * 2, "needs 8 compute slices of 7"),
        (["3g.71gb", "2g.35gb", "1g.18gb", "1g.18gb"], None),
        (["4g.71gb", "1g.35gb", "1g.18gb", "1g.18gb"], None),
        (["4g.71gb", "2g.35gb", "1g.35gb"], None),
        (["1g.35gb"] * 3 + ["1g.18gb"] * 2, None),
        (["3g.71gb", "1g.35gb", "1g.35gb"], None),
        (["1g.35gb"] * 2 + ["1g.18gb"] * 4, None),
        (["1g.35gb"] * 1 + ["1g.18gb"] * 6, None),
    ],
)
def test_a_refused_set_says_why(names: list[str], reason: str | None) -> None:
    assert refusal_of(H200, names) == reason


def test_any_order_of_creation_works_when_starts_are_named() -> None:
    layout = arrange(H200, ["3g.71gb", "1g.18gb", "1g.18gb", "1g.18gb", "1g.18gb"])
    assert layout is not None
    assert Placement(4, "3g.71gb") in layout
    for order in permutations(layout):
        assert all(fault_of(H200, order[:n]) is None for n in range(len(order) + 1))


def test_creation_goes_from_large_to_small() -> None:
    order = creation_order(H200, [Placement(0, "1g.18gb"), Placement(4, "3g.71gb"), Placement(2, "1g.35gb")])
    assert [str(p) for p in order] == ["3g.71gb:4", "1g.35gb:2", "1g.18gb:0"]


def test_an_illegal_layout_has_no_order_of_creation() -> None:
    with pytest.raises(ValueError, match="can't start at 2"):
        creation_order(H200, [Placement(2, "4g.71gb")])
