"""Which replicas take requests while others stand by."""

from dataclasses import dataclass

import pytest

from replicas.autoscaling.rotation import in_rotation


@dataclass(frozen=True)
class One:
    replica: str
    ready_since: float


@pytest.mark.parametrize(
    ("ready", "count", "serving"),
    [
        ([("a", 3.0), ("b", 1.0), ("c", 2.0)], 2, ["b", "c"]),
        ([("a", 3.0), ("b", 1.0), ("c", 2.0)], 5, ["b", "c", "a"]),
        # Who was lost and is back stands by.
        ([("a", 3.0), ("b", 9.0), ("c", 2.0)], 2, ["c", "a"]),
        ([("b", 0.0), ("a", 0.0)], 1, ["a"]),
        ([], 1, []),
    ],
)
def test_those_that_have_been_ready_for_longest_serve(
    ready: list[tuple[str, float]], count: int, serving: list[str]
) -> None:
    assert [r.replica for r in in_rotation([One(*r) for r in ready], count)] == serving
