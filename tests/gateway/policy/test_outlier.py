"""Who stands out, and for how long they stay out."""

from random import Random

import pytest

from gateway.policy.outlier import ejection_s, lagging, slowest

TABLE = [
    # latencies, already out, share → who goes
    ({"a": 0.02, "b": 0.02, "c": 0.2}, 0, 0.5, "c"),
    ({"a": 0.02, "b": 0.02, "c": 0.06}, 0, 0.5, None),  # three times, but within the floor
    ({"a": 0.001, "b": 0.001, "c": 0.009}, 0, 0.5, None),  # nine times nothing is noise
    ({"a": 0.02, "b": 0.2}, 0, 0.5, "b"),
    ({"a": 0.02, "b": 0.2}, 0, 0.49, None),  # half of the tier is more than the share
    ({"a": 0.02, "b": 0.2}, 1, 0.5, None),  # one of three is out already
    ({"a": 0.02, "b": 0.2, "c": 0.02}, 1, 0.5, "b"),
    ({"a": 9.0}, 0, 1.0, None),  # nobody to compare with
    ({}, 0, 1.0, None),
    ({"a": 0.2, "b": 0.2, "c": 0.2}, 0, 0.5, None),  # all slow: nobody stands out
    ({"a": 0.02, "b": 0.3, "c": 0.3, "d": 0.02, "e": 0.02}, 0, 0.5, "b"),  # of two, one at a time
    ({"a": 0.02, "b": 0.3, "c": 0.31, "d": 0.02, "e": 0.02}, 0, 0.5, "c"),  # the worse first
]


@pytest.mark.parametrize(("latency_s", "already_out", "share", "expected"), TABLE)
def test_slowest(latency_s: dict[str, float], already_out: int, share: float, expected: str | None) -> None:
    assert slowest(latency_s, 0.03, already_out, share) == expected


@pytest.mark.parametrize(
    ("times", "least_s"),
    [(0, 1.0), (1, 1.0), (2, 2.0), (3, 4.0), (5, 16.0), (6, 30.0), (50, 30.0), (2000, 30.0)],
)
def test_ejections_double_up_to_the_cap_with_a_quarter_of_jitter(times: int, least_s: float) -> None:
    found = [ejection_s(times, 1.0, 30.0, Random(n)) for n in range(200)]
    assert least_s <= min(found) < 1.02 * least_s
    assert 1.22 * least_s < max(found) <= 1.25 * least_s


@pytest.mark.parametrize(
    ("latency_s", "expected"),
    [
        ({"a": 0.02, "b": 0.02, "c": 0.05}, {"c"}),
        ({"a": 0.02, "b": 0.05, "c": 0.02, "d": 0.06}, {"b", "d"}),
        ({"a": 0.02, "b": 0.034}, set()),  # within the factor and the floor
        ({"a": 0.0005, "b": 0.002}, set()),  # four times nothing
        ({"a": 9.0}, set()),
        ({}, set()),
    ],
)
def test_lagging(latency_s: dict[str, float], expected: set[str]) -> None:
    assert lagging(latency_s, 0.005) == expected
