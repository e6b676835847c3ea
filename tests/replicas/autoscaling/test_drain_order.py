"""Which replica goes first."""

from dataclasses import replace

import pytest

from replicas.autoscaling.drain_order import Member, drain_order, member_of
from state_store.records import ReplicaRecord

READY = Member("ready", "ready", bound_sessions=5, cached_prefixes=5, in_flight=5, started_at=100)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Member("b", "draining"), Member("a", "down")),
        (Member("b", "down"), Member("a", "starting")),
        (Member("b", "starting", started_at=200), READY),
        # The one that has longest to go.
        (Member("b", "starting", started_at=200), Member("a", "starting", started_at=100)),
        (Member("b", "ready", bound_sessions=0, cached_prefixes=99, in_flight=9), Member("a", "ready", bound_sessions=1)),
        (Member("b", "ready", cached_prefixes=1, in_flight=9), Member("a", "ready", cached_prefixes=2)),
        (Member("b", "ready", in_flight=1), Member("a", "ready", in_flight=2)),
        (READY, Member("a", "ready", is_standby=True)),
        (Member("b", "starting"), Member("a", "ready", is_standby=True)),
        (Member("a", "ready"), Member("b", "ready")),
    ],
)  # fmt: skip
def test_the_cheaper_loss_goes_first(first: Member, second: Member) -> None:
    assert drain_order([second, first]) == (first, second)
    assert drain_order([first, second]) == (first, second)


def test_the_replica_that_holds_least_goes_first() -> None:
    record = ReplicaRecord("r", "m", "t", "http://h:1", "s", "ready", "", "a", 4, 1.0, 99.5)
    held = {"a": 40, "b": 7, "c": 900}
    members = [member_of(replace(record, replica=name, held_blocks=n)) for name, n in held.items()]
    assert [m.replica for m in drain_order(members)] == ["b", "a", "c"]
    busy = [member_of(replace(record, replica="b", held_blocks=7), bound_sessions=1), *members[::2]]
    assert [m.replica for m in drain_order(busy)] == ["a", "c", "b"]
