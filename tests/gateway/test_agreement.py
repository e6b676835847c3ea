"""Ladders of several gateways over one store: one share, with the store and without it."""

from itertools import pairwise

import pytest

from gateway.fleet import Fleet
from gateway.ladder import Ladder
from gateway.policy.health import Health
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStoreUnavailable
from tests.gateway.test_ladder import NOW, WALL, load, two_tiers


class Store(MemoryStateStore):
    """A store that can go away, on the test's own clock."""

    def __init__(self) -> None:
        super().__init__(lambda: self.clock)
        self.clock, self.is_away = NOW, False

    async def put(
        self, group: str, key: str, value: bytes, *, ttl_s: float, only_if_absent: bool = False
    ) -> bool:
        self._reach()
        return await super().put(group, key, value, ttl_s=ttl_s, only_if_absent=only_if_absent)

    async def scan(self, group: str) -> dict[str, bytes]:
        self._reach()
        return await super().scan(group)

    def _reach(self) -> None:
        if self.is_away:
            raise StateStoreUnavailable("away")


class Gateways:
    """Some gateways, stepped twice a second; `shares` has each one's share of the best tier after each step."""

    def __init__(self, count: int) -> None:
        self.store = Store()
        self.fleets = [two_tiers() for _ in range(count)]
        self.ladders = [Ladder(fleet, self.store) for fleet in self.fleets]
        self.shares: list[list[float]] = [[] for _ in range(count)]
        self.now = NOW

    async def play(self, seconds: float, *ttfts_s: float | None, alive: int | None = None) -> None:
        """What first tokens each gateway sees; None: it has no traffic."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.store.clock = self.now
            for number, (fleet, ladder) in enumerate(zip(self.fleets, self.ladders, strict=True)):
                if alive is not None and number != alive:
                    continue
                ttft_s = ttfts_s[number]
                if ttft_s is not None:
                    load(fleet.tiers["best"], self.now, ttft_s)
                await ladder.exchange(self.now, WALL + self.now)
                ladder.step(self.now, WALL + self.now)
                self.shares[number].append(fleet.tiers["best"].share)

    def apart(self, since: int = 0) -> float:
        """How far the shares were from each other at most, from that step on."""
        columns = zip(*(shares[since:] for shares in self.shares), strict=True)
        return max(max(column) - min(column) for column in columns)


def turns(shares: list[float]) -> int:
    """How often a share changed its direction."""
    moves = [after - before for before, after in pairwise(shares) if abs(after - before) > 1e-9]
    return sum((a > 0) != (b > 0) for a, b in pairwise(moves))


def largest_step(shares: list[float]) -> float:
    return max(abs(after - before) for before, after in pairwise(shares))


LATE, IN_TIME = 1.5, 0.2


async def test_a_gateway_without_traffic_has_the_share_that_the_others_traffic_calls_for() -> None:
    gateways = Gateways(2)
    await gateways.play(4, IN_TIME, None)
    await gateways.play(12, LATE, None)
    assert gateways.shares[0][-1] < 0.3
    await gateways.play(30, IN_TIME, None)
    assert gateways.apart() <= 0.126, "half a second's change"
    assert [shares[-1] for shares in gateways.shares] == [1.0, 1.0]
    assert [turns(shares) for shares in gateways.shares] == [1, 1]


async def test_the_one_that_suffers_need_not_be_the_one_that_leads() -> None:
    gateways = Gateways(2)
    await gateways.play(2, None, IN_TIME)
    await gateways.play(6, None, LATE)
    assert max(shares[-1] for shares in gateways.shares) < 0.5
    assert gateways.apart() <= 0.126


async def test_one_of_three_with_a_bad_network_moves_nobody() -> None:
    gateways = Gateways(3)
    await gateways.play(10, IN_TIME, IN_TIME, LATE)
    assert {share for shares in gateways.shares for share in shares} == {1.0}


async def test_without_the_store_each_goes_on_alone_and_both_meet_again_without_a_jump() -> None:
    gateways = Gateways(2)
    await gateways.play(2, IN_TIME, IN_TIME)
    await gateways.play(2, LATE, LATE)
    together = gateways.shares[0][-1]
    gateways.store.is_away = True
    await gateways.play(5, LATE, IN_TIME)
    assert gateways.shares[0][-1] < together - 0.2, "it goes on down"
    away = len(gateways.shares[0])
    gateways.store.is_away = False
    await gateways.play(30, IN_TIME, IN_TIME)
    assert gateways.apart(away + 4) <= 0.126, "one share within two seconds"
    assert [shares[-1] for shares in gateways.shares] == [1.0, 1.0]
    assert max(map(largest_step, gateways.shares)) <= 0.26
    assert [turns(shares) <= 2 for shares in gateways.shares] == [True, True]
    assert turns(gateways.shares[0]) == 1


async def test_another_leads_from_where_a_dead_one_was() -> None:
    gateways = Gateways(2)
    await gateways.play(2, IN_TIME, IN_TIME)
    await gateways.play(3, LATE, LATE)
    before = gateways.shares[1][-1]
    await gateways.play(40, IN_TIME, IN_TIME, alive=1)
    assert gateways.shares[1][-1] == 1.0
    assert turns(gateways.shares[1]) == 1
    assert before < 0.6
    assert gateways.ladders[1].peers == 0


async def test_who_reaches_no_replica_leads_nobody() -> None:
    gateways = Gateways(2)
    for replica in gateways.fleets[0].tiers["best"].replicas.values():
        replica.become(Health("down", "unreachable from here"))
    await gateways.play(8, None, LATE)
    assert gateways.shares[1][-1] < 0.5
    assert gateways.shares[0][-1] == 1.0, "and has it all when it does"


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b'{"gateway": "x", "since": 1, "voices": {"best": {"press": 1}}}']
)
async def test_what_nobody_understands_is_ignored(raw: bytes) -> None:
    gateways = Gateways(1)
    await gateways.store.put("ladder_peers:chat", "x", raw, ttl_s=1e9)
    await gateways.play(1, IN_TIME)
    assert gateways.shares == [[1.0, 1.0]]


async def test_a_fleet_alone_agrees_with_itself() -> None:
    fleet: Fleet = two_tiers()
    ladder = Ladder(fleet, MemoryStateStore())
    await ladder.exchange(NOW, WALL)
    ladder.step(NOW, WALL)
    await ladder.exchange(NOW + 0.5, WALL)
    assert ladder.peers == 0
