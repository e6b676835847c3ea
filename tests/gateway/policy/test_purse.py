"""Accounts of several gateways over one amount of money, step by step."""

from random import Random

import pytest

from gateway.policy.purse import CHUNK_SHARE, Account


def test_a_request_needs_a_claim_first() -> None:
    account = Account(100.0, 10.0)
    assert not account.hold(0.5)
    assert account.wants(0.5) == (100.0 * CHUNK_SHARE, 0.5)
    assert account.claim(2.0, others=0.0)
    assert account.hold(0.5)
    assert (account.free, account.left) == (1.5, 99.5)
    account.settle(0, 0.5, 0.2)
    assert (account.spent, account.held, account.free) == (0.2, 0.0, 1.8)


@pytest.mark.parametrize(
    ("claimed", "others", "more", "is_given"),
    [(0, 0, 100, True), (0, 0, 101, False), (50, 49, 1, True), (50, 49, 1.1, False), (0, 100, 0.1, False)],
)
def test_all_claims_together_stay_within_the_amount(
    claimed: float, others: float, more: float, is_given: bool
) -> None:
    account = Account(100.0, 0.0, claimed=claimed)
    assert account.claim(more, others) is is_given
    assert account.claimed == claimed + (more if is_given else 0)


def test_what_is_dearer_than_its_hold_is_paid_all_the_same() -> None:
    account = Account(100.0, 0.0)
    account.claim(2.0, 0.0)
    account.hold(2.0)
    account.settle(0, 2.0, 5.0)
    assert (account.spent, account.claimed, account.left) == (5.0, 5.0, 95.0)


def test_without_the_store_only_a_share() -> None:
    account = Account(100.0, 10.0)
    assert account.claim_loosely(8.0)
    assert not account.claim_loosely(3.0)
    assert account.claim_loosely(2.0)
    assert not Account(100.0, 0.0).claim_loosely(0.1)
    full = Account(100.0, 10.0, others=95.0)
    assert full.claim_loosely(5.0)
    assert not full.claim_loosely(1.0)


def test_a_new_period_has_the_whole_amount() -> None:
    account = Account(1.0, 0.1, period=7)
    account.claim(1.0, 0.0)
    account.hold(1.0)
    account.settle(7, 1.0, 1.0)
    assert account.is_spent
    account.turn(7)
    assert account.is_spent
    account.turn(8)
    assert not account.is_spent
    account.settle(7, 1.0, 1.0)
    assert account.spent == 0.0, "a request of the old period is not this one's"


@pytest.mark.parametrize("seed", range(20))
def test_however_many_gateways_and_requests_the_amount_is_kept(seed: int) -> None:
    """Claims go through one ledger, as the store is; whatever happens in between, nobody spends beyond the amount."""
    rng, ledger = Random(seed), [0.0] * 5
    accounts = [Account(10.0, 0.0) for _ in ledger]
    for _ in range(2000):
        me = rng.randrange(len(accounts))
        account, cost = accounts[me], rng.uniform(0.001, 0.2)
        is_held = account.hold(cost)
        for more in () if is_held else account.wants(cost):
            if account.claim(more, sum(ledger) - ledger[me]):
                ledger[me], is_held = account.claimed, account.hold(cost)
                assert is_held
                break
        if is_held:
            account.settle(0, cost, cost * rng.uniform(0.0, 1.0))
    spent = sum(a.spent for a in accounts)
    assert 9.0 < spent <= 10.0 + 1e-6
