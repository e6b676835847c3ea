"""What proves that a rung holds."""

import pytest

from gateway.policy.proof import Drilled, proof

NOW, AGE = 1000.0, 100.0
FAILED = "its drill failed: late"


@pytest.mark.parametrize(
    ("drilled", "served_at", "expected"),
    [
        (None, None, (False, "never exercised", None)),
        (Drilled(950.0, True), None, (True, "drilled", 950.0)),
        (None, 950.0, (True, "served", 950.0)),
        (Drilled(950.0, True), 960.0, (True, "served", 960.0)),
        (Drilled(890.0, True), None, (False, "not exercised for too long", 890.0)),
        (Drilled(800.0, True), 850.0, (False, "not exercised for too long", 850.0)),
        (Drilled(800.0, True), 950.0, (True, "served", 950.0)),
        # traffic that came through is no answer to a drill that failed
        (Drilled(950.0, False, "late"), 990.0, (False, FAILED, 950.0)),
        (Drilled(890.0, False, "late"), 990.0, (True, "served", 990.0)),
        (Drilled(890.0, False, "late"), None, (False, "never exercised", None)),
    ],
)
def test_proof(
    drilled: Drilled | None, served_at: float | None, expected: tuple[bool, str, float | None]
) -> None:
    found = proof(drilled, served_at, NOW, AGE)
    assert (found.is_proven, found.text, found.at) == expected
