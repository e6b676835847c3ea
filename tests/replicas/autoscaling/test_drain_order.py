"""Which replica goes first."""

import pytest

from replicas.autoscaling.drain_order import Member, drain_order

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
