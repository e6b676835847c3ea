"""Rendezvous hashing: alike everywhere, and little moves when the fleet changes."""

import json
import subprocess
import sys
from collections import Counter

from gateway.policy import rendezvous
from gateway.policy.rendezvous import digest, ranked
from gateway.policy.snapshot import Routable
from tests.gateway.policy.fleets import R

SESSIONS = [f"session-{n}" for n in range(4000)]


def fleet(count: int) -> Routable:
    return Routable(R(f"10.0.0.{n}:8000") for n in range(count))


def choices(session: str, replicas: Routable, count: int = 2) -> list[str]:
    return [r.replica for r in ranked(digest(session), replicas, count)]


def test_digest_is_a_fixed_number() -> None:
    assert digest("10.0.0.1:8000") == 12762026736958320935


def test_another_process_ranks_alike() -> None:
    program = (
        "import json, sys\n"
        "from tests.gateway.policy.test_rendezvous import choices, fleet\n"
        "print(json.dumps([choices(f's{n}', fleet(9), 9) for n in range(50)]))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    assert json.loads(out) == [choices(f"s{n}", fleet(9), 9) for n in range(50)]


def test_the_order_of_the_list_does_not_matter() -> None:
    forwards, backwards = fleet(9), Routable(reversed(list(fleet(9))))
    assert all(choices(s, forwards) == choices(s, backwards) for s in SESSIONS[:200])


def test_sessions_are_spread_evenly() -> None:
    counts = Counter(choices(s, fleet(8))[0] for s in SESSIONS)
    assert len(counts) == 8
    # 500 expected; five standard deviations are 105.
    assert all(395 < n < 605 for n in counts.values())


def test_a_new_replica_moves_its_own_share_and_nothing_else() -> None:
    old, new = fleet(8), fleet(9)
    moved = [s for s in SESSIONS if choices(s, old)[0] != choices(s, new)[0]]
    assert {choices(s, new)[0] for s in moved} == {"10.0.0.8:8000"}
    assert 340 < len(moved) < 550


def test_a_lost_replica_moves_its_own_sessions_to_their_second_choice() -> None:
    whole = fleet(8)
    rest = Routable(r for r in whole if r.replica != "10.0.0.3:8000")
    for session in SESSIONS[:1000]:
        first, second = choices(session, whole)
        expected = second if first == "10.0.0.3:8000" else first
        assert choices(session, rest)[0] == expected


def test_the_sessions_of_a_lost_replica_scatter_over_all_others() -> None:
    seconds = Counter(b for a, b in (choices(s, fleet(8)) for s in SESSIONS) if a == "10.0.0.3:8000")
    assert len(seconds) == 7
    assert max(seconds.values()) < 2 * sum(seconds.values()) / 7


def test_fewer_replicas_than_asked_for() -> None:
    assert choices("s", fleet(1)) == ["10.0.0.0:8000"]
    assert choices("s", fleet(0)) == []


ZONED = [R(f"10.0.{zone}.{n}:8000", zone=zone) for zone in "abc" for n in range(3)]


def zoned_choices(session: str, replicas: list[R], lost: tuple[str, ...] = ()) -> list[R]:
    return rendezvous.choices(digest(session), Routable(replicas), lost)  # type: ignore[return-value]


def test_the_standby_is_in_another_zone_and_the_first_choice_stays_what_it_is() -> None:
    for session in SESSIONS[:500]:
        first, standby = zoned_choices(session, ZONED)
        assert first.replica == choices(session, Routable(ZONED), 1)[0]
        assert standby.zone != first.zone


def test_who_loses_the_first_choice_finds_the_standby_whether_or_not_its_zone_goes_too() -> None:
    for session in SESSIONS[:500]:
        first, standby = zoned_choices(session, ZONED)
        rest = [r for r in ZONED if r is not first]
        assert zoned_choices(session, rest, (first.zone,))[0] == standby
        assert zoned_choices(session, [r for r in rest if r.zone != first.zone])[0] == standby


def test_a_lost_zone_serves_all_the_same_where_there_is_no_other() -> None:
    lone = [r for r in ZONED if r.zone == "a"]
    assert [r.replica for r in zoned_choices("s", lone, ("a",))] == choices("s", Routable(lone))
    assert zoned_choices("s", ZONED, ("a", "b"))[0].zone == "c"
