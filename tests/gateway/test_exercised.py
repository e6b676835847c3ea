"""What was exercised is known to every gateway, to later ones, and without the store."""

import pytest

from gateway.exercise import read_exercise
from gateway.exercised import Exercised
from gateway.shares import TierShares
from state_store.memory import MemoryStateStore
from tests.gateway.test_agreement import Store

WALL = 1.7e9


def exercised(store: MemoryStateStore, shares: TierShares | None = None) -> Exercised:
    return Exercised("chat", store, shares or TierShares(), lambda: 3600.0)


async def test_traffic_proves_a_tier_everywhere_and_to_who_comes_later() -> None:
    store, shares = MemoryStateStore(), TierShares()
    here, there = exercised(store, shares), exercised(store)
    shares.add("small", 1.0)
    await here.exchange(WALL)
    await there.exchange(WALL)
    assert there.of("small", WALL).is_proven
    assert not there.of("small", WALL + 3601).is_proven
    assert there.of("best", WALL).text == "never exercised"
    await here.exchange(WALL + 4000)
    assert not here.of("small", WALL + 4000).is_proven, "nothing more was served"
    shares.add("small", 2.0)
    await here.exchange(WALL + 4000)
    assert here.of("small", WALL + 4000).text == "served"


async def test_a_drill_is_told_once_the_store_is_back() -> None:
    store = Store()
    here, there = exercised(store), exercised(store)
    store.is_away = True
    here.drilled("small", False, "late", WALL)
    await here.exchange(WALL)
    assert here.of("small", WALL).text == "its drill failed: late"
    store.is_away = False
    await here.exchange(WALL + 2)
    await there.exchange(WALL + 2)
    assert there.of("small", WALL + 2) == here.of("small", WALL + 2)


async def test_what_nobody_understands_is_ignored() -> None:
    store = MemoryStateStore()
    await store.put("exercised:chat", "drill/small", b"?", ttl_s=9.0)
    one = exercised(store)
    await one.exchange(WALL)
    assert one.of("small", WALL).text == "never exercised"


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"{}", b'{"tier": "a"}', b'{"tier": 1, "passed": true}', b'{"tier": "a", "passed": 1}',
     b'{"tier": "a", "passed": true, "more": 1}', b'{"tier": "a", "passed": true, "detail": "' + b"x" * 301 + b'"}'],
)  # fmt: skip
def test_what_is_no_exercise(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_exercise(raw)


def test_an_exercise() -> None:
    exercise = read_exercise(b'{"tier": "small", "passed": false, "detail": "late"}')
    assert exercise.text("chat") == "small of chat was drilled and failed: late"
    assert (
        read_exercise(b'{"tier": "small", "passed": true}').text("chat")
        == "small of chat was drilled and passed"
    )
