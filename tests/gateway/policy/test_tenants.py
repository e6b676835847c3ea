"""How far back a newcomer stands, as a table of who waits."""

import pytest

from gateway.policy.tenants import Tenants

NOW = 100.0


@pytest.mark.parametrize(
    ("waiting", "tenant", "weight", "expected"),
    [
        ({}, "a", 1.0, 0),
        ({"a": 5}, "a", 1.0, 5),
        # each of the others goes first as often as it has a right to
        ({"b": 10}, "a", 1.0, 1),
        ({"a": 2, "b": 10}, "a", 1.0, 5),
        ({"b": 10, "c": 10}, "a", 1.0, 2),
        ({"b": 10}, "a", 5.0, 0),
        ({"b": 10}, "a", 0.5, 2),
        # and no oftener than it waits
        ({"a": 9, "b": 1}, "a", 1.0, 10),
    ],
)
def test_those_that_wait(waiting: dict[str, int], tenant: str, weight: float, expected: int) -> None:
    tenants = Tenants()
    for name, count in waiting.items():
        for _ in range(count):
            tenants.enter(name, weight if name == tenant else 1.0, NOW)
    assert tenants.ahead_of(tenant, weight, 0.0, NOW) == expected


def test_those_that_will_come_count_too() -> None:
    tenants = Tenants()
    for number in range(100):
        tenants.enter("b", 1.0, NOW + number / 10)
        tenants.leave("b")
    now = NOW + 9.9
    for _ in range(20):
        tenants.enter("a", 1.0, now)
    assert tenants.ahead_of("a", 1.0, 0.0, now) == 20
    assert tenants.ahead_of("a", 1.0, 1.0, now) == pytest.approx(30, abs=2)


def test_who_does_not_come_any_more_is_forgotten() -> None:
    tenants = Tenants()
    tenants.enter("b", 1.0, NOW)
    tenants.leave("b")
    tenants.enter("c", 1.0, NOW)
    assert tenants.ahead_of("a", 1.0, 10.0, NOW + 60.0) == 1
