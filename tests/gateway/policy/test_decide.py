"""`decide`, as a table: a request and a fleet in, what becomes of the request out."""

from random import Random

import pytest

from gateway.policy.decide import Limits, decide
from gateway.policy.decision import Decision, Serve, Shed, Wait
from gateway.policy.facts import Attempt, Facts
from gateway.policy.snapshot import Snapshot
from tests.gateway.policy.fleets import ROUTE, R, every, facts, ladder, own, starting, tier

NOW = 100.0
A, B, S = R("a"), R("b"), R("s")
FULL_A, FULL_B, FULL_S = R("a", 8), R("b", 8), R("s", 8)
FAILED_A = Attempt("best", "a", "reset")
FAILED_B = Attempt("best", "b", "http_500")
MISS = Attempt("cached", "", "miss")


def run(
    snapshot: Snapshot,
    *attempts: Attempt,
    request: Facts | None = None,
    now: float = NOW,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Decision:
    return decide(request or facts(), snapshot, attempts, now, Random(0), ROUTE, limits)


SERVES = [
    # the best tier, without a reason
    ("idle", ladder(tier("best", A), tier("small", S)), (), ("best", "a", "")),
    ("one of two is full", ladder(tier("best", FULL_A, B)), (), ("best", "b", "")),
    ("slots unknown", ladder(tier("best", R("a", 500, None))), (), ("best", "a", "")),
    # a failed replica is not asked again
    ("retry elsewhere", ladder(tier("best", A, B)), (FAILED_A,), ("best", "b", "")),
    # a lower tier, and why
    ("no replica at all", ladder(tier("best"), tier("small", S)), (), ("small", "s", "no_replica")),
    ("it sleeps", ladder(tier("best", asleep=True), tier("small", S)), (), ("small", "s", "no_replica")),
    ("all failed", ladder(tier("best", A), tier("small", S)), (FAILED_A,), ("small", "s", "reset")),
    ("the last failure counts", ladder(tier("best", A, B), tier("small", S)), (FAILED_A, FAILED_B),
     ("small", "s", "http_500")),
    ("gone since it failed", ladder(tier("best"), tier("small", S)), (FAILED_A,), ("small", "s", "reset")),
    ("the first skip names the reason", ladder(tier("best"), tier("mid", FULL_A, slo=0.0), tier("small", S)), (),
     ("small", "s", "no_replica")),
    ("a lower tier while it starts", ladder(starting("best", 8), tier("small", S)), (), ("small", "s", "no_replica")),
    # the gateway's own tiers
    ("canned", ladder(tier("best"), own("canned")), (), ("canned", None, "no_replica")),
    ("own tier alone", ladder(own("canned")), (), ("canned", None, "")),
    ("a cache that missed is passed over", ladder(tier("best"), own("cached"), own("canned")), (MISS,),
     ("canned", None, "no_replica")),
    ("a miss uses no retry", ladder(tier("best"), own("cached"), tier("small", S), may_retry=False), (MISS,),
     ("small", "s", "no_replica")),
    ("budget spent: no replica again, but canned text", ladder(tier("best", A, B), own("canned"), may_retry=False),
     (FAILED_A,), ("canned", None, "reset")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "attempts", "expected"), [c[1:] for c in SERVES], ids=[c[0] for c in SERVES]
)
def test_serves(
    snapshot: Snapshot, attempts: tuple[Attempt, ...], expected: tuple[str, str | None, str]
) -> None:
    decision = run(snapshot, *attempts)
    assert isinstance(decision, Serve)
    replica = decision.replica.replica if decision.replica else None
    assert (decision.tier, replica, decision.reason) == expected


WAITS = [
    # as long as a slot would still be in time; critical ones longest
    ("full", ladder(tier("best", FULL_A)), {}, Wait("best", 100.88, "")),
    ("full, slow promise", ladder(tier("best", FULL_A, slo=10.0)), {}, Wait("best", 108.8, "")),
    ("a tier below could serve", ladder(tier("best", FULL_A), tier("small", S)), {"priority": "critical"},
     Wait("best", 100.75, "")),
    ("a deadline before that", ladder(tier("best", FULL_A)), {"deadline": 100.5}, Wait("best", 100.5, "")),
    ("the queue moves fast enough", ladder(tier("best", FULL_A, ahead=(0, 5, 5), forecast=every(0.1))), {},
     Wait("best", 100.88, "")),
    ("only those of its rank are ahead", ladder(tier("best", FULL_A, ahead=(0, 50, 50), forecast=every(0.1))),
     {"priority": "critical"}, Wait("best", 100.95, "")),
    ("a lower tier's queue", ladder(tier("best"), tier("small", FULL_S)), {}, Wait("small", 100.88, "no_replica")),
    # a tier that sleeps wakes because somebody waits for it; nobody does where another answers, or where too many do
    ("asleep", ladder(tier("best", asleep=True)), {}, Wait("best", 160.0, "")),
    # nobody is there yet, and nobody else could serve
    ("it starts", ladder(starting("best", 8)), {}, Wait("best", 160.0, "")),
    ("it is only suspected", ladder(starting("best", 8, until=107.0)), {}, Wait("best", 107.0, "")),
    ("both start", ladder(starting("best", 8), starting("small", 8)), {}, Wait("best", 160.0, "")),
    # a session's own replica, for 0.4 of the SLO
    ("its replica is full", ladder(tier("best", FULL_A, B), bindings={"best": "a"}), {"session": "x"},
     Wait("best", 100.4, "", "a")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "changes", "expected"), [c[1:] for c in WAITS], ids=[c[0] for c in WAITS]
)
def test_waits(snapshot: Snapshot, changes: dict[str, object], expected: Wait) -> None:
    decision = run(snapshot, request=facts(**changes))
    assert isinstance(decision, Wait)
    assert (decision.tier, decision.reason, decision.replica) == (
        expected.tier,
        expected.reason,
        expected.replica,
    )
    assert decision.until == pytest.approx(expected.until)


SHEDS = [
    ("more wait than there will be places", ladder(starting("best", 8, ahead=(0, 8, 8))), {}, (), ("no_replica", 1.0)),
    ("it started, and failed", ladder(starting("best", 8)), {}, (FAILED_A,), ("no_replica", 1.0)),
    # 429: contended
    ("waited long enough", ladder(tier("best", FULL_A)), {"arrived_at": 99.0}, (), ("queue_full", 0.1)),
    ("the queue is too long", ladder(tier("best", FULL_A, ahead=(0, 30, 30), forecast=every(0.1))), {}, (),
     ("queue_full", 3.1)),
    ("the deadline comes first", ladder(tier("best", FULL_A, ahead=(0, 3, 3), forecast=every(0.1))),
     {"deadline": 100.3}, (), ("deadline", 0.4)),
    ("too many overtake it",
     ladder(tier("best", FULL_A, ahead=(0, 0, 5), forecast=every(0.1), outranking_per_s=(0.0, 4.0, 9.0))),
     {"priority": "sheddable"}, (), ("priority", 0.6)),
    ("one tier contended, one dead", ladder(tier("best"), tier("small", FULL_S, slo=0.0)), {}, (), ("queue_full", 0.1)),
    ("of two queues the shorter wait",
     ladder(tier("best", FULL_A, ahead=(90, 90, 90), forecast=every(0.1)),
            tier("small", FULL_S, ahead=(30, 30, 30), forecast=every(0.1))), {}, (), ("queue_full", 3.1)),
    ("all pushed back", ladder(tier("best")), {}, (Attempt("best", "a", "backpressure"),), ("queue_full", 1.0)),
    ("deadline passed", ladder(tier("best", A)), {"deadline": 100.0}, (), ("deadline", None)),
    # 503: nothing can serve
    ("nobody there", ladder(tier("best")), {}, (), ("no_replica", 1.0)),
    ("all tried", ladder(tier("best", A, B)), {}, (FAILED_A, FAILED_B), ("no_replica", 1.0)),
    ("the lower tier is not accepted", ladder(tier("best"), tier("small", S)), {"lowest_tier": 0}, (),
     ("no_replica", 1.0)),
    ("the budget is spent", ladder(tier("best", A, B), may_retry=False), {}, (FAILED_A,), ("no_replica", 1.0)),
    ("own tiers all missed", ladder(own("cached")), {}, (MISS,), ("no_tier", None)),
    ("nothing accepted", ladder(), {}, (), ("no_tier", None)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("snapshot", "changes", "attempts", "expected"), [c[1:] for c in SHEDS], ids=[c[0] for c in SHEDS]
)
def test_sheds(
    snapshot: Snapshot,
    changes: dict[str, object],
    attempts: tuple[Attempt, ...],
    expected: tuple[str, float | None],
) -> None:
    decision = run(snapshot, *attempts, request=facts(**changes))
    assert isinstance(decision, Shed)
    assert decision.reason == expected[0]
    assert decision.retry_after_s == (None if expected[1] is None else pytest.approx(expected[1]))
    assert decision.detail


@pytest.mark.parametrize(("lowest", "expected"), [(0, "no_replica"), (1, "small"), (2, "small")])
def test_the_caller_s_floor(lowest: int, expected: str) -> None:
    snapshot = ladder(tier("best"), tier("small", S), own("canned"))
    decision = run(snapshot, request=facts(lowest_tier=lowest))
    assert (decision.reason if isinstance(decision, Shed) else decision.tier) == expected


@pytest.mark.parametrize(("max_attempts", "tier_name"), [(1, "canned"), (2, "canned"), (3, "best")])
def test_attempts_over_replicas_and_tiers_are_counted_together(max_attempts: int, tier_name: str) -> None:
    snapshot = ladder(tier("best", A, B, R("c")), own("canned"))
    decision = run(snapshot, FAILED_A, FAILED_B, limits=Limits(max_attempts))
    assert isinstance(decision, Serve)
    assert decision.tier == tier_name


class TestAffinity:
    bindings = {"best": "a"}  # noqa: RUF012

    def decide(self, *replicas: R, tried: tuple[Attempt, ...] = (), now: float = NOW) -> Decision:
        snapshot = ladder(tier("best", *replicas), bindings=self.bindings)
        return run(snapshot, *tried, request=facts(session="x"), now=now)

    def test_its_replica_even_when_fuller(self) -> None:
        assert self.decide(R("a", 6), B) == Serve("best", R("a", 6), "")

    def test_elsewhere_once_it_waited(self) -> None:
        assert self.decide(FULL_A, B, now=100.41) == Serve("best", B, "")

    def test_no_wait_for_a_replica_that_failed_it(self) -> None:
        assert self.decide(FULL_A, B, tried=(FAILED_A,)) == Serve("best", B, "")

    def test_no_wait_for_a_replica_that_is_gone(self) -> None:
        assert self.decide(B) == Serve("best", B, "")

    def test_without_a_session_bindings_mean_nothing(self) -> None:
        snapshot = ladder(tier("best", FULL_A, B), bindings=self.bindings)
        assert run(snapshot) == Serve("best", B, "")
