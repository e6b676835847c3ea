"""What the known answer is, and who contradicts it. Each step: a replica, its answer, whether that is found wrong."""

import pytest

from gateway.known_answer import KnownAnswer

Steps = list[tuple[str, str, bool]]
TABLE: dict[str, Steps] = {
    "one answer twice is known": [("a", "8", False), ("a", "8", False), ("a", "lie", True), ("a", "8", False)],
    "what another knows holds for a newcomer": [("a", "8", False), ("a", "8", False), ("b", "lie", True)],
    "a liar among the first answers does not become the truth": [
        ("liar", "lie", False), ("a", "8", False), ("a", "8", False), ("liar", "lie", False),
    ],
    "who contradicts itself before anything is known turns judging off": [
        ("a", "8", False), ("a", "9", False), ("a", "8", False), ("a", "8", False), ("b", "lie", False),
    ],
    "all replicas changed: the model did": [
        ("a", "8", False), ("a", "8", False), ("b", "8", False), ("a", "new", True), ("b", "new", False),
        ("a", "new", False), ("b", "8", True),
    ],
    "one replica alone that changed is wrong for ever": [
        ("a", "8", False), ("a", "8", False), *[("a", "new", True)] * 5,
    ],
    "an empty answer is an answer": [("a", "8", False), ("a", "8", False), ("a", "", True)],
}  # fmt: skip


@pytest.mark.parametrize("steps", TABLE.values(), ids=TABLE)
def test_table(steps: Steps) -> None:
    known = KnownAnswer()
    assert [known.is_wrong(replica, answer) for replica, answer, _ in steps] == [wrong for *_, wrong in steps]


def test_a_replica_that_is_gone_has_no_say() -> None:
    known = KnownAnswer()
    known.is_wrong("gone", "lie")
    known.forget("gone")
    known.is_wrong("a", "8")
    known.is_wrong("a", "8")
    assert known.answer == "8"
    known.forget("gone")
