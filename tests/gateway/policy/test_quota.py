"""A tenant's quota as a table of what is asked for and when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.policy.quota import Bucket, Quota


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
    quota.settle(estimated=600, used=100)
    assert quota.reserve(500, 1.0) is None


def test_what_was_used_beyond_the_estimate_has_to_be_waited_for() -> None:
    quota = Quota(None, 600)
    assert quota.reserve(100, 1.0) is None
    quota.settle(estimated=100, used=900)
    assert quota.reserve(100, 1.0) == pytest.approx(40.0)


def test_a_refusal_takes_nothing() -> None:
    quota = Quota(1, 600)
    assert quota.reserve(10, 1.0) is None
    assert quota.reserve(10, 1.0) is not None
    assert quota.reserve(590, 61.0) is None


class Region:
    """Several gateways and a store, by the clock of the test. Without the store they are alone."""

    def __init__(self, gateways: int, per_minute: float) -> None:
        self.views = [Bucket(per_minute, gateways) for _ in range(gateways)]
        self.level, self.as_of, self.now = per_minute, 1000.0, 1000.0
        self.claims = [0.0] * gateways
        self.admitted = 0

    def ask(self, which: int) -> bool:
        view = self.views[which % len(self.views)]
        if view.wait_s(1.0, self.now) > 0:
            return False
        view.take(1.0)
        self.admitted += 1
        return True

    def exchange(self, *which: int) -> None:
        """As the store does it."""
        for number in which or range(len(self.views)):
            view = self.views[number % len(self.views)]
            view.refill(self.now)
            refilled = min(view.size, self.level + view.per_s * (self.now - self.as_of))
            self.level, self.as_of = refilled - view.used, self.now
            self.claims[number % len(self.views)] = 0.0
            free = max(0.0, self.level - sum(self.claims))
            claim = max(free / 2, min(free, view.wanted)) if len(self.views) > 1 else free
            self.claims[number % len(self.views)] = claim
            view.told(view.used, self.level, claim, len(self.views), self.now)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 120),
    st.lists(st.integers(0, 99), min_size=1, max_size=400),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_all_gateways_together_stay_within_the_quota(
    gateways: int, per_minute: int, asked: list[int], is_store_there: list[bool]
) -> None:
    """Twelve times ten seconds, in some of which the store is gone; in each, everybody asks all that was drawn."""
    region = Region(gateways, float(per_minute))
    begun_at = region.now
    region.exchange()
    for is_there in is_store_there:
        for number, which in enumerate(asked):
            region.ask(which)
            region.now += 10.0 / len(asked)
            if is_there and number % 3 == 2:
                region.exchange(which // 7)
        allowed = per_minute * (1.0 + (region.now - begun_at) / 60.0)
        assert region.admitted <= allowed + 3 * gateways


def test_one_gateway_may_use_all_of_it_and_without_the_store_its_part() -> None:
    region = Region(2, 60.0)
    for _ in range(12):
        while region.ask(0):
            pass
        region.exchange()
    assert region.admitted >= 59
    region.admitted = 0
    for _ in range(60):
        region.now += 1.0
        while region.ask(0):
            pass
    assert region.admitted == pytest.approx(30, abs=2), "it can't tell, so half of the refill is the other's"


def test_an_outage_leaves_no_debt_behind() -> None:
    region = Region(2, 60.0)
    region.exchange()
    for second in range(600):
        region.now += 1.0
        region.ask(second)
    region.exchange()
    assert region.level >= 0.0
    assert region.ask(0)


def test_what_is_larger_than_a_claim_is_had_after_an_exchange() -> None:
    region = Region(2, 1000.0)
    region.exchange()
    region.views[0].take(200.0)
    region.exchange()
    assert region.views[0].wait_s(500.0, region.now) == 0.1
    region.exchange(0)
    region.exchange(1)
    region.exchange(0)
    assert region.views[0].wait_s(500.0, region.now) in (0.0, 0.1)
    region.exchange(0)
    assert region.views[0].wait_s(500.0, region.now) == 0.0
