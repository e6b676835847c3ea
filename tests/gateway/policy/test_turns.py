"""Which messages are left when the oldest turns go, by their initials."""

import pytest

from gateway.policy.turns import Conversation

ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}


def conversation(roles: str) -> Conversation:
    return Conversation.of([{"role": ROLES[r], "content": f"{r}{i}"} for i, r in enumerate(roles)])


@pytest.mark.parametrize(
    ("roles", "removable", "left"),
    [
        ("u", 0, ["u0"]),
        ("su", 0, ["s0 u1"]),
        ("sua", 0, ["s0 u1 a2"]),
        ("suau", 1, ["s0 u1 a2 u3", "s0 u3"]),
        ("suauau", 2, ["s0 u1 a2 u3 a4 u5", "s0 u3 a4 u5", "s0 u5"]),
        # a call and what the tool said go or stay together, in the last turn too
        ("suatauatau", 2, ["s0 u1 a2 t3 a4 u5 a6 t7 a8 u9", "s0 u5 a6 t7 a8 u9", "s0 u9"]),
        ("uatauat", 1, ["u0 a1 t2 a3 u4 a5 t6", "u4 a5 t6"]),
        # instructions stay where they stand
        ("suasudu", 2, ["s0 u1 a2 s3 u4 d5 u6", "s0 s3 u4 d5 u6", "s0 s3 d5 u6"]),
        # a greeting that nobody asked for is the oldest turn
        ("sau", 1, ["s0 a1 u2", "s0 u2"]),
        ("auau", 2, ["a0 u1 a2 u3", "u1 a2 u3", "u3"]),
        # nobody asked anything: all of it is the last turn
        ("sa", 0, ["s0 a1"]),
    ],
)
def test_what_is_left(roles: str, removable: int, left: list[str]) -> None:
    whole = conversation(roles)
    assert whole.removable == removable
    sizes = whole.sizes(lambda message: len(message["content"]))
    assert sizes[: removable + 1] == [
        sum(len(m["content"]) for m in whole.without(n)) for n in range(removable + 1)
    ]
    said = [" ".join(m["content"] for m in whole.without(n)) for n in range(removable + 1)]
    assert said == left


def test_nothing_at_all() -> None:
    assert Conversation.of([]).without(0) == []
