"""The checker of session histories on histories that are written down: what it lets pass, and what it catches."""

import pytest

from loadtests.session_history import Turn, check


def turn(
    at: float, epoch: int, number: int, durability: str = "stored", gateway: int = 0, lasts_s: float = 0.5
) -> Turn:
    return Turn("s", at, at + lasts_s, gateway, epoch, number, durability)


FINE = {
    "turns that go up": [turn(1, 7, 1), turn(2, 7, 2), turn(3, 7, 5)],
    "a new epoch": [turn(1, 7, 9), turn(2, 8, 1)],
    "two at once, in any order": [turn(1, 7, 2, lasts_s=2.0), turn(1.5, 7, 1)],
    "a local one that knows less": [turn(1, 7, 4), turn(2, 7, 3, "local"), turn(3, 7, 5)],
    "an unconfirmed one of an epoch that is over": [
        turn(1, 8, 1),
        turn(2, 7, 9, "unconfirmed"),
        turn(3, 8, 2),
    ],
    "a local one twice": [turn(1, 7, 4, "local", 0), turn(2, 7, 4, "local", 1)],
}


@pytest.mark.parametrize("history", FINE.values(), ids=FINE)
def test_what_may_be(history: list[Turn]) -> None:
    assert check(history).violations == ()


WRONG = {
    "a number twice": [turn(1, 7, 1), turn(2, 7, 1)],
    "a number lower": [turn(1, 7, 3), turn(2, 7, 2, "replicated")],
    "an epoch back": [turn(1, 8, 1), turn(2, 7, 9)],
    "the same for two at once": [turn(1, 7, 2, lasts_s=2.0), turn(1.5, 7, 2)],
}


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_what_may_not(history: list[Turn]) -> None:
    assert len(check(history).violations) == 1


def test_what_a_gateway_knew_alone_is_kept_once_all_is_well_unless_it_died() -> None:
    history = [turn(1, 7, 3), turn(2, 7, 6, "local", gateway=1), turn(9, 7, 4)]
    assert len(check(history, heals_at=8.0).violations) == 1
    assert check(history, died=[(1, 3.0)], heals_at=8.0).violations == ()
    assert len(check(history, died=[(0, 3.0), (1, 1.0)], heals_at=8.0).violations) == 1
    assert check([*history[:2], turn(9, 7, 7)], heals_at=8.0).violations == ()


def test_without_a_reason_no_epoch_ends() -> None:
    history = [turn(1, 7, 9), turn(2, 8, 10)]
    assert check(history, may_lose=True).epochs == 1
    assert len(check(history, may_lose=False).violations) == 1
    assert check(history[:1], may_lose=False).violations == ()
