"""Where a broken stream goes on."""

from dataclasses import replace
from random import Random

import pytest

from gateway.policy.decide import SEAM_HOPELESS_S, SEAM_WAIT_S, Limits, decide_seam
from gateway.policy.decision import Decision, Serve, Shed, Wait
from gateway.policy.facts import Attempt, Seam
from gateway.policy.snapshot import Snapshot
from tests.gateway.policy.fleets import ROUTE, R, facts, ladder, own, tier

A, B, S = R("a"), R("b"), R("s")
FAILED_A = Attempt("best", "a", "reset")


def run(
    snapshot: Snapshot,
    *attempts: Attempt,
    now: float = 100.0,
    may_change_tier: bool = True,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    **changes: object,
) -> Decision:
    seam = Seam("best", 100.0, may_change_tier)
    return decide_seam(facts(**changes), snapshot, attempts, seam, now, Random(0), ROUTE, limits)


def test_its_own_tier_first() -> None:
    assert run(ladder(tier("best", A, B), tier("small", S)), FAILED_A) == Serve("best", B, "resumed")


def test_waits_a_moment_for_a_slot_there() -> None:
    full = ladder(tier("best", A, R("b", 8)), tier("small", S))
    assert run(full, FAILED_A) == Wait("best", 100.0 + SEAM_WAIT_S, "resumed")


def test_waits_a_moment_for_a_replica_that_may_prove_well() -> None:
    assert run(ladder(tier("best"), tier("small", S)), FAILED_A) == Wait(
        "best", 100.0 + SEAM_WAIT_S, "resumed"
    )


def test_waits_longer_for_one_that_is_only_suspected_when_nobody_else_could_go_on() -> None:
    suspected = replace(tier("best"), starting=8)
    later = 100.0 + SEAM_WAIT_S
    assert run(ladder(suspected), FAILED_A, now=later) == Wait("best", 100.0 + SEAM_HOPELESS_S, "resumed")
    assert run(ladder(suspected, tier("small", S)), FAILED_A, now=later) == Serve("small", S, "no_replica")
    assert isinstance(run(ladder(suspected), FAILED_A, now=100.0 + SEAM_HOPELESS_S), Shed)
    assert isinstance(run(ladder(tier("best")), FAILED_A, now=later), Shed)


def test_then_goes_on_in_the_least_full_one() -> None:
    full = ladder(tier("best", A, R("b", 9), R("c", 8)), tier("small", S))
    assert run(full, FAILED_A, now=100.0 + SEAM_WAIT_S) == Serve("best", R("c", 8), "resumed")


def test_the_one_that_broke_it_may_have_it_again_when_there_is_no_other() -> None:
    only = ladder(tier("best", A), tier("small", S))
    assert run(only, FAILED_A) == Wait("best", 100.0 + SEAM_WAIT_S, "resumed")
    assert run(only, FAILED_A, now=100.5) == Serve("best", A, "resumed")


@pytest.mark.parametrize(
    ("may_change_tier", "lowest", "expected"),
    [
        (True, 9, Serve("small", S, "no_replica")),
        (True, 0, Shed("no_replica", 1.0)),
        (False, 9, Shed("no_replica", 1.0)),
    ],
)
def test_another_tier_only_where_the_caller_allows_it(
    may_change_tier: bool, lowest: int, expected: Decision
) -> None:
    decision = run(
        ladder(tier("best"), own("cached"), tier("small", S)),
        FAILED_A,
        now=100.0 + SEAM_WAIT_S,
        may_change_tier=may_change_tier,
        lowest_tier=lowest if lowest == 0 else 2,
    )
    if isinstance(expected, Shed):
        assert isinstance(decision, Shed)
        assert decision.reason == "no_replica"
    else:
        assert decision == expected


def test_a_tier_that_has_no_engine_can_t_finish_a_sentence() -> None:
    decision = run(ladder(tier("best"), own("cached"), own("canned")), FAILED_A, now=100.0 + SEAM_WAIT_S)
    assert isinstance(decision, Shed)
    assert decision.reason == "no_replica"


def test_not_after_the_deadline() -> None:
    decision = run(ladder(tier("best", A, B)), FAILED_A, now=160.0)
    assert isinstance(decision, Shed)
    assert decision.reason == "deadline"


def test_waits_no_longer_than_the_deadline() -> None:
    full = ladder(tier("best", A, R("b", 8)))
    assert run(full, FAILED_A, deadline=100.2) == Wait("best", 100.2, "resumed")


def test_gives_up_after_as_many_attempts_without_progress_as_a_request_has() -> None:
    again = [FAILED_A] * 3
    assert isinstance(run(ladder(tier("best", A)), *again, now=100.5, limits=Limits(4)), Serve)
    decision = run(ladder(tier("best", A)), *again, now=100.5, limits=Limits(3))
    assert isinstance(decision, Shed)
    assert decision.reason == "no_replica"


def test_what_is_left_goes_on_for_a_tier_that_a_reload_took_away() -> None:
    left = ladder(own("cached"), tier("small", S))
    assert run(left, FAILED_A) == Serve("small", S, "no_replica")
    refused = run(left, FAILED_A, may_change_tier=False)
    assert isinstance(refused, Shed)
    assert refused.reason == "no_replica"
