"""Routing inside a tier: filters, scorers, pickers, candidates, and names in the configuration."""

from collections import Counter
from random import Random

import pytest

from gateway.policy.facts import Attempt
from gateway.policy.prefix import PrefixIndex
from gateway.policy.rendezvous import digest, ranked
from gateway.policy.route import (
    CANDIDATES,
    Context,
    Route,
    best,
    candidates,
    context_of,
    free_slot,
    not_tried,
    power_of_two,
    predicted_wait,
    resolve,
    route_of,
    session,
    zone,
)
from gateway.policy.snapshot import Routable, TierView
from tests.gateway.policy.fleets import ROUTE, R, context, facts, ladder, tier

A, B, C = R("a"), R("b"), R("c")


def prefers_b(replica: R, context: Context) -> float:
    """A scorer of somebody else's, found by import path."""
    return float(replica.replica == "b")


@pytest.mark.parametrize(("tried", "accepts"), [((), True), (("b",), True), (("b", "a"), False)])
def test_not_tried(tried: tuple[str, ...], accepts: bool) -> None:
    assert not_tried(A, context(A, B, tried=tried)) is accepts


@pytest.mark.parametrize(
    ("in_flight", "slots", "accepts"),
    [(0, 8, True), (7, 8, True), (8, 8, False), (9, 8, False), (999, None, True)],
)
def test_free_slot(in_flight: int, slots: int | None, accepts: bool) -> None:
    replica = R("a", in_flight, slots)
    assert free_slot(replica, context(replica)) is accepts


SESSION = [
    # the pinned replica, however loaded
    (R("a", 7), {"bound": "a"}, 1.0),
    (B, {"bound": "a"}, 0.0),
    # a new session: first choice, standby, others
    (A, {"preferred": ("a", "b")}, 1.0),
    (B, {"preferred": ("a", "b")}, 0.5),
    (C, {"preferred": ("a", "b")}, 0.0),
    (A, {}, 0.0),
]


@pytest.mark.parametrize(("replica", "known", "score"), SESSION)
def test_session(replica: R, known: dict[str, object], score: float) -> None:
    others = [r for r in (A, B, C) if r.replica != replica.replica]
    assert session(replica, context(replica, *others, **known)) == score  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("in_flight", "others", "score"), [(1, 0, 1.0), (2, 0, 0.0), (3, 1, 1.0), (4, 1, 0.0), (8, 8, 1.0)]
)
def test_a_new_session_avoids_a_first_choice_over_the_bound(
    in_flight: int, others: int, score: float
) -> None:
    # The bound is 1.25 times the mean load, and one more: 1.8 for (2, 0), 3.1 for (3, 1), 3.5 for (4, 1).
    fleet = (R("a", in_flight), R("b", others), R("c", others))
    assert session(fleet[0], context(*fleet, preferred=("a", "b"))) == score


@pytest.mark.parametrize(("in_flight", "score"), [(6, 1.0), (7, 0.0)])
def test_in_a_large_tier_the_bound_is_four_fifths_of_the_slots(in_flight: int, score: float) -> None:
    busy = R("a", in_flight)
    others = [R(f"r{n}") for n in range(CANDIDATES)]
    assert session(busy, context(busy, *others, preferred=("a",))) == score


WAITS = [
    (R("a"), 1.0),
    (R("a", 8), 0.5),
    (R("a", 4), 1 / 1.5),
    (R("a", 0, ttft_s=1.0), 0.5),
    (R("a", 64, None), 0.5),
    (R("a", 8, ttft_s=2.0), 0.25),
]


@pytest.mark.parametrize(("replica", "score"), WAITS)
def test_predicted_wait(replica: R, score: float) -> None:
    assert predicted_wait(replica, context(replica, slo=1.0)) == pytest.approx(score)


@pytest.mark.parametrize(
    ("ours", "its", "score"), [("x", "x", 1.0), ("x", "y", 0.0), ("", "", 0.0), ("", "x", 0.0)]
)
def test_zone(ours: str, its: str, score: float) -> None:
    replica = R("a", zone=its)
    assert zone(replica, context(replica, zone=ours)) == score


class TestPickers:
    def test_best_takes_the_highest_score(self) -> None:
        assert best([(0.1, A), (0.9, B), (0.5, C)], Random(0)) is B

    def test_best_chooses_at_random_among_equals(self) -> None:
        rng = Random(1)
        chosen = Counter(best([(0.5, A), (0.5 + 1e-12, B), (0.1, C)], rng).replica for _ in range(2000))
        assert set(chosen) == {"a", "b"}
        assert 850 < chosen["a"] < 1150

    def test_power_of_two_never_takes_the_worst_but_not_always_the_best(self) -> None:
        rng = Random(2)
        chosen = Counter(power_of_two([(0.1, A), (0.5, B), (0.9, C)], rng).replica for _ in range(3000))
        # Of the three pairs, C is in two and A wins none.
        assert set(chosen) == {"b", "c"}
        assert 1850 < chosen["c"] < 2150

    def test_power_of_two_of_one(self) -> None:
        assert power_of_two([(0.1, A)], Random(0)) is A


class TestPick:
    def test_nothing_passes(self) -> None:
        full = R("a", 8)
        assert ROUTE.pick([full], context(full), Random(0)) is None

    def test_a_lone_survivor_is_not_scored(self) -> None:
        def never(replica: R, context: Context) -> float:
            raise AssertionError

        route = Route((not_tried,), ((never, 1.0),), best)  # type: ignore[arg-type]
        assert route.pick([A, B], context(A, B, tried=("a",)), Random(0)) is B

    def test_affinity_outweighs_load_and_zone(self) -> None:
        replicas = (R("a", 7, ttft_s=0.5), R("b", zone="z"))
        assert ROUTE.pick(replicas, context(*replicas, bound="a", zone="z"), Random(0)) is replicas[0]

    def test_load_outweighs_zone(self) -> None:
        replicas = (R("a", 6, zone="z"), R("b"))
        assert ROUTE.pick(replicas, context(*replicas, zone="z"), Random(0)) is replicas[1]

    def test_zone_decides_between_equals(self) -> None:
        replicas = (R("a"), R("b", zone="z"))
        assert {ROUTE.pick(replicas, context(*replicas, zone="z"), Random(n)) for n in range(20)} == {
            replicas[1]
        }


class TestCandidates:
    THOUSAND = tuple(R(f"r{n}") for n in range(1000))

    def test_a_small_tier_is_looked_at_whole(self) -> None:
        eight = self.THOUSAND[:CANDIDATES]
        assert list(candidates(context(*eight), Random(0))) == list(eight)

    def test_a_thousand_replicas_are_a_handful(self) -> None:
        found = candidates(context(*self.THOUSAND), Random(0))
        assert len({r.replica for r in found}) == CANDIDATES

    @pytest.mark.parametrize("known", [{"bound": "r777"}, {"preferred": ("r777", "r778")}])
    def test_with_those_that_the_session_prefers(self, known: dict[str, object]) -> None:
        for seed in range(20):
            found = {r.replica for r in candidates(context(*self.THOUSAND, **known), Random(seed))}  # type: ignore[arg-type]
            assert "r777" in found
            assert len(found) <= CANDIDATES + 2

    def test_a_choice_that_is_gone_is_left_out(self) -> None:
        found = candidates(context(*self.THOUSAND, bound="gone"), Random(0))
        assert "gone" not in {r.replica for r in found}

    def test_every_replica_has_its_turn(self) -> None:
        rng = Random(3)
        seen = Counter(r.replica for _ in range(2000) for r in candidates(context(*self.THOUSAND), rng))
        assert len(seen) == 1000
        assert max(seen.values()) < 50


class TestContextOf:
    def test_a_live_binding(self) -> None:
        view = tier("t", A, B)
        found = context_of(facts(session="x"), view, ladder(view, bindings={"t": "a", "u": "b"}), ())
        assert (found.bound, found.preferred) == ("a", ())

    def test_a_binding_to_a_replica_that_is_gone_gives_two_choices(self) -> None:
        view = tier("t", A, B, C)
        found = context_of(facts(session="x"), view, ladder(view, bindings={"t": "gone"}), ())
        expected = tuple(r.replica for r in ranked(digest("x"), view.routable, 2))
        assert (found.bound, found.preferred) == ("", expected)
        assert len(set(expected)) == 2

    @pytest.mark.parametrize(
        ("bindings", "holders", "first"),
        [
            ({"t": "gone"}, ("c",), "c"),
            ({"t": "gone"}, ("gone", "b"), "b"),
            ({"t": "gone"}, ("gone",), None),
            ({}, ("c",), None),
        ],
    )
    def test_a_session_that_lost_its_replica_goes_where_most_of_its_prompt_is(
        self, bindings: dict[str, str], holders: tuple[str, ...], first: str | None
    ) -> None:
        view, index = tier("t", A, B, C), PrefixIndex()
        for replica in reversed(holders):
            index.add(replica, (1, 2))
        known = ladder(view, bindings=bindings)._replace(prefixes=index)
        found = context_of(facts(session="x", prefix=(1, 2, 3)), view, known, ())
        hashed = [r.replica for r in ranked(digest("x"), view.routable, 2)]
        others = [name for name in hashed if name != first]
        assert found.preferred == ((first, others[0]) if first else tuple(hashed))

    @pytest.mark.parametrize(
        ("bindings", "attempts"), [({"t": "a1"}, ()), ({}, ("a1",)), ({"t": "gone"}, ("a1",))]
    )
    def test_a_session_whose_replica_is_lost_prefers_another_zone(
        self, bindings: dict[str, str], attempts: tuple[str, ...]
    ) -> None:
        zoned = [R(f"{zone}{n}", zone=zone) for zone in "ab" for n in range(1, 9)]
        routable = Routable([r for r in zoned if r.replica != "a1"], absent=zoned)
        view = TierView("t", True, routable)
        tried = [Attempt("t", replica, "cut") for replica in attempts]
        for number in range(50):
            found = context_of(facts(session=f"s{number}"), view, ladder(view, bindings=bindings), tried)
            assert [name[0] for name in found.preferred] == ["b", "a"]

    def test_no_session_prefers_nothing(self) -> None:
        view = tier("t", A, B)
        found = context_of(
            facts(), view, ladder(view, bindings={"t": "a"}, zone="z"), [Attempt("t", "a", "cut")]
        )
        assert (found.bound, found.preferred, found.tried, found.zone) == ("", (), {"a"}, "z")


class TestNames:
    @pytest.mark.parametrize(
        "name", ["not_tried", "free_slot", "session", "predicted_wait", "zone", "best", "power_of_two"]
    )
    def test_by_name(self, name: str) -> None:
        assert resolve(name).__name__ == name

    def test_by_import_path(self) -> None:
        assert resolve("tests.gateway.policy.test_route:prefers_b") is prefers_b

    @pytest.mark.parametrize(
        ("name", "error"),
        [
            ("no_such", ValueError),
            ("CANDIDATES", ValueError),
            ("gateway.policy.route:no_such", ValueError),
            ("no.such.module:f", ModuleNotFoundError),
            ("", ValueError),
        ],
    )
    def test_what_is_not_there(self, name: str, error: type[Exception]) -> None:
        with pytest.raises(error):
            resolve(name)

    def test_a_route_from_the_configuration(self) -> None:
        route = route_of(["not_tried"], {"tests.gateway.policy.test_route:prefers_b": 2.0}, "best")
        assert {route.pick([A, B, C], context(A, B, C), Random(n)) for n in range(20)} == {B}
        assert route.pick([A, B], context(A, B, tried=("b",)), Random(0)) is A


class TestFullness:
    @pytest.mark.parametrize(
        ("replicas", "expected"),
        [
            ((), False),
            ((R("a", 8),), True),
            ((R("a", 8), R("b", 7)), False),
            ((R("a", 8), R("b", 900, None)), False),
            ((R("a", 9), R("b", 8)), True),
        ],
    )
    def test_no_place_is_free(self, replicas: tuple[R, ...], expected: bool) -> None:
        assert Routable(replicas).is_full() is expected

    def test_is_looked_at_again_once_a_place_came_free(self) -> None:
        slots = R("a", 8)
        routable = Routable([slots])
        assert routable.is_full()
        object.__setattr__(slots, "in_flight", 7)
        routable.freed()
        assert not routable.is_full()
