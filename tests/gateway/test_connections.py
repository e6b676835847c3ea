"""Who may stay and who has to go, by literal times and connections that are no more than their stage."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from gateway.connections import Connections, Stage
from gateway.specs import LimitsSpec


@dataclass(eq=False)
class Guest:
    name: str
    address: str = "a"
    stage: Stage = "fresh"
    ended: list[str] = field(default_factory=list)

    def give_way(self) -> None:
        self.ended.append("gave way")

    def time_out(self) -> None:
        self.ended.append("timed out")


def house(**limits: Any) -> Connections:
    spec = LimitsSpec(**limits)
    return Connections(lambda: spec)


@pytest.mark.parametrize(
    ("stages", "goes"),
    [
        (["idle", "fresh", "head"], 1),  # who never asked goes first
        (["busy", "idle", "head"], 2),  # then whose request does not come
        (["busy", "idle", "idle"], 1),  # then who has been idle for longest
        (["body", "busy", "idle"], 2),
        (["busy", "body", "busy"], None),  # nobody who is being served
    ],
)
async def test_who_goes_when_the_house_is_full(stages: list[Stage], goes: int | None) -> None:
    full = house(max_connections=3)
    guests = [Guest(str(n)) for n in range(3)]
    for n, (guest, stage) in enumerate(zip(guests, stages, strict=True)):
        assert full.enter(guest, float(n))
        full.move(guest, stage, float(n))
    assert full.enter(Guest("new"), 9.0) is (goes is not None)
    assert [n for n, guest in enumerate(guests) if guest.ended] == ([] if goes is None else [goes])
    assert len(full) == 3


async def test_an_address_has_a_limit_of_its_own() -> None:
    limited = house(max_connections_per_address=2)
    here = [Guest("1"), Guest("2")]
    assert all(limited.enter(guest, 0.0) for guest in here)
    assert limited.enter(Guest("other", "b"), 1.0)
    assert here[0].ended == []
    assert limited.enter(Guest("3"), 2.0)
    assert (here[0].ended, here[1].ended) == (["gave way"], [])
    limited.move(here[1], "busy", 3.0)
    third = Guest("4")
    assert limited.enter(third, 4.0)
    limited.move(third, "busy", 4.0)
    assert not limited.enter(Guest("5"), 5.0)
    limited.leave(third)
    assert limited.enter(Guest("6"), 6.0)


@pytest.mark.parametrize(
    ("stage", "now", "is_over"),
    [
        ("fresh", 74.0, False),
        ("fresh", 75.0, True),
        ("head", 9.0, False),
        ("head", 10.0, True),
        ("body", 59.0, False),
        ("body", 60.0, True),
        ("idle", 75.0, True),
        ("busy", 10_000.0, False),
    ],
)
async def test_each_stage_has_its_time(stage: Stage, now: float, is_over: bool) -> None:
    watched = house()
    guest = Guest("1")
    watched.enter(guest, 0.0)
    watched.move(guest, stage, 0.0)
    watched.end_overdue(now)
    assert guest.ended == (["timed out"] if is_over else [])
    assert len(watched) == (0 if is_over else 1)


async def test_what_trickles_in_stops_no_clock() -> None:
    """A stage lasts from when it began, whatever comes in meanwhile."""
    watched = house()
    early, late = Guest("early"), Guest("late")
    for guest, since in ((early, 0.0), (late, 5.0)):
        watched.enter(guest, since)
        watched.move(guest, "head", since)
    watched.end_overdue(11.0)
    assert (early.ended, late.ended) == (["timed out"], [])
