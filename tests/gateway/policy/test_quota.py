"""A tenant's quota as a table of what is asked for and when."""

import pytest

from gateway.policy.quota import Quota


@pytest.mark.parametrize(
    ("requests", "tokens", "asked", "expected"),
    [
        (None, None, [(1.0, 10_000)] * 3, [None, None, None]),
        (2, None, [(1.0, 1), (1.0, 1), (1.0, 1)], [None, None, 30.0]),
        (2, None, [(1.0, 1), (1.0, 1), (31.0, 1)], [None, None, None]),
        (None, 600, [(1.0, 400), (1.0, 400)], [None, 20.0]),
        (None, 600, [(1.0, 400), (21.0, 400)], [None, None]),
        (None, 600, [(1.0, 5000)], [None]),  # larger than the bucket: a full one will do
        (1, 600, [(1.0, 600), (1.0, 600)], [None, 60.0]),  # the longer wait counts
    ],
)
def test_reserve(
    requests: int | None, tokens: int | None, asked: list[tuple[float, int]], expected: list[float | None]
) -> None:
    quota = Quota(requests, tokens)
    assert [quota.reserve(amount, now) for now, amount in asked] == pytest.approx(expected)


def test_what_was_reserved_and_not_used_is_given_back() -> None:
    quota = Quota(None, 600)
    assert quota.reserve(600, 1.0) is None
    quota.settle(estimated=600, used=100, now=1.0)
    assert quota.reserve(500, 1.0) is None


def test_what_was_used_beyond_the_estimate_has_to_be_waited_for() -> None:
    quota = Quota(None, 600)
    assert quota.reserve(100, 1.0) is None
    quota.settle(estimated=100, used=900, now=1.0)
    assert quota.reserve(100, 1.0) == pytest.approx(40.0)


def test_a_refusal_takes_nothing() -> None:
    quota = Quota(1, 600)
    assert quota.reserve(10, 1.0) is None
    assert quota.reserve(10, 1.0) is not None
    assert quota.reserve(590, 61.0) is None
