"""Which replica goes first."""

from dataclasses import replace

import pytest

from replicas.autoscaling.drain_order import Member, drain_order, members_in, members_of
from replicas.autoscaling.load import LOADS, LoadRecord
from state_store.memory import MemoryStateStore
from state_store.records import REPLICAS, ReplicaRecord

READY = Member("ready", "ready", bound_sessions=5, cached_prefixes=5)
RECORD = ReplicaRecord("r", "m", "t", "http://h:1", "s", "ready", "", "a", 4, 1.0, 99.5)
LOAD = LoadRecord("gateway", "m", "t", 0, 0, 0.0, 0.0, 0.0, 0.0, 99.5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Member("b", "draining"), Member("a", "down")),
        (Member("b", "down"), Member("a", "starting")),
        (Member("b", "starting"), READY),
        (Member("b", "ready", bound_sessions=0, cached_prefixes=99), Member("a", "ready", bound_sessions=1)),
        (Member("b", "ready", cached_prefixes=1), Member("a", "ready", cached_prefixes=2)),
        (READY, Member("a", "ready", is_standby=True)),
        (Member("b", "starting"), Member("a", "ready", is_standby=True)),
    ],
)
def test_the_cheaper_loss_goes_first(first: Member, second: Member) -> None:
    assert drain_order([second, first]) == (first, second)
    assert drain_order([first, second]) == (first, second)


def test_what_costs_the_same_stays_in_its_order() -> None:
    members = [Member(name, "ready", 1, 1) for name in "cab"]
    assert drain_order(members) == tuple(members)


@pytest.mark.parametrize(
    ("members", "order"),
    [
        # Name, zone, bound sessions.
        ([("a", "x", 0), ("b", "x", 1), ("c", "y", 2), ("d", "y", 3)], "acbd"),
        ([("a", "x", 3), ("b", "y", 0), ("c", "x", 2)], "cba"),
        ([("a", "x", 2), ("b", "y", 1), ("c", "z", 0)], "cba"),
    ],
)
def test_the_last_of_a_zone_stays_longest(members: list[tuple[str, str, int]], order: str) -> None:
    found = drain_order(Member(name, "ready", bound, zone=zone) for name, zone, bound in members)
    assert "".join(m.replica for m in found) == order


def test_who_does_not_serve_goes_first_though_its_zone_has_no_other() -> None:
    members = [Member("a", "ready", zone="x"), Member("b", "ready", zone="x"), Member("c", "down", zone="y")]
    assert [m.replica for m in drain_order(members)] == ["c", "a", "b"]


def test_the_replica_that_holds_least_goes_first() -> None:
    held = {"a": 40, "b": 7, "c": 900}
    records = [replace(RECORD, replica=name, held_blocks=n) for name, n in held.items()]
    assert [m.replica for m in drain_order(members_of(records, []))] == ["b", "a", "c"]
    loads = [replace(LOAD, bound_sessions={"b": 1, "a": 1}), replace(LOAD, bound_sessions={"b": 1})]
    assert [m.replica for m in drain_order(members_of(records, loads))] == ["c", "a", "b"]


def test_those_that_stand_by_are_the_last_that_became_ready() -> None:
    since = {"a": 30.0, "b": 10.0, "c": 20.0}
    records = [replace(RECORD, replica=name, ready_since=at) for name, at in since.items()]
    loads = [replace(LOAD, bound_sessions={"b": 1})]
    found = members_of(records, loads, serving=2)
    assert {m.replica for m in found if m.is_standby} == {"a"}
    assert [m.replica for m in drain_order(found)] == ["c", "b", "a"]


async def test_the_members_of_a_tier_are_read_from_the_store() -> None:
    store = MemoryStateStore()
    for record in (
        RECORD,
        replace(RECORD, replica="left", is_leaving=True),
        replace(RECORD, replica="x", tier="u"),
    ):
        await store.put(REPLICAS, record.replica, record.to_bytes(), ttl_s=9.0)
    for load in (replace(LOAD, bound_sessions={"r": 3}), replace(LOAD, gateway="o", tier="u")):
        await store.put(LOADS, load.gateway, load.to_bytes(), ttl_s=9.0)
    found = await members_in(store, "m", "t")
    assert sorted(found, key=lambda m: m.replica) == [
        Member("left", "draining", zone="a"),
        Member("r", "ready", bound_sessions=3, zone="a"),
    ]
