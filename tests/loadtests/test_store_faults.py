"""What the store table makes of what clients met."""

import pytest

from loadtests.store_faults import Met, Result, misses


def result(name: str, more_s: float = 0.0, failed: int = 0) -> Result:
    return Result(name, 100, failed, 0.050, 0.050 + more_s, more_s, 0)


def test_p99_is_that_of_all_rounds_and_more_that_of_the_middle_one() -> None:
    met = Met(asked=400, failed=1, local=7)
    for late_s in (0.02, 0.5, 0.03):
        met.add([0.01] * 100, [0.02] * 98 + [late_s, late_s])
    told = met.result("full")
    assert (told.plain_s, told.session_s, told.local) == (0.01, 0.03, 7)
    assert told.more_s == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([result("none"), result("full", 0.004)], []),
        ([result("none"), result("full", 0.006)], ["full: p99 is 6.0 ms more with a session"]),
        ([result("none", 0.003), result("full", 0.007)], []),
        ([result("none", -0.01), result("full", 0.006)], ["full: p99 is 6.0 ms more with a session"]),
        ([result("killed", failed=2)], ["killed: 2 requests failed"]),
    ],
)
def test_what_was_not_kept_is_said_as_far_as_the_machine_is_not_to_blame(
    results: list[Result], said: list[str]
) -> None:
    assert misses(results) == said
