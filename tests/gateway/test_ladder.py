"""A live ladder: signals of a fleet, what they do to decisions, and an operator's word."""

from random import Random

import pytest

from gateway.fleet import Fleet
from gateway.ladder import Ladder, signals_of
from gateway.overrides import Override, Overrides
from gateway.pin import read_pin
from gateway.policy.decide import decide
from gateway.policy.decision import Serve, Shed
from gateway.policy.facts import Facts, Priority
from gateway.policy.health import Health
from gateway.specs import BreakerSpec, Endpoint, Slo, TierSpec
from gateway.tier import Tier
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStoreUnavailable
from tests.gateway.policy.fleets import ROUTE

NOW, WALL = 1000.0, 1.7e9


def tier_spec(name: str, count: int = 2) -> TierSpec:
    replicas = tuple(Endpoint(url=f"http://127.0.0.1:{n + 1}") for n in range(count))
    return TierSpec(
        name=name, backend="openai", served_model="m", slots=8, slo=Slo(ttft_s=1.0), replicas=replicas
    )


def two_tiers() -> Fleet:
    fleet = Fleet("chat", [tier_spec("best"), tier_spec("small")], BreakerSpec(), Random(0), "")
    for tier in fleet.tiers.values():
        for replica in tier.replicas.values():
            replica.become(Health("ready"))
    return fleet


def load(tier: Tier, now: float, ttft_s: float) -> None:
    """Ten requests of each rank, a second."""
    for n in range(30):
        tier.arrivals.add(n % 3, now - 1 + n / 30)
        tier.recent.first_token(ttft_s, now)


def served(
    fleet: Fleet, priority: Priority, now: float, *, lowest: int = 1, session: str = "", bound: str = ""
) -> dict[str, int]:
    """Which tiers get a thousand such requests, and why a lower one did."""
    found: dict[str, int] = {}
    for seed in range(1000):
        name = f"{session}{seed}" if session else ""
        facts = Facts("chat", now, now + 60, priority, name, lowest)
        snapshot = fleet.snapshot(now, True, {"best": bound} if bound else {})
        decision = decide(facts, snapshot, (), now, Random(seed), ROUTE)
        assert isinstance(decision, Serve)
        key = f"{decision.tier} {decision.reason}".strip()
        found[key] = found.get(key, 0) + 1
    return found


@pytest.fixture
async def store() -> MemoryStateStore:
    return MemoryStateStore()


class TestUnderPressure:
    async def test_a_tier_that_was_gone_has_all_its_traffic_as_soon_as_one_replica_is_back(
        self, store: MemoryStateStore
    ) -> None:
        fleet = two_tiers()
        ladder, best = Ladder(fleet, store), fleet.tiers["best"]
        for replica in best.replicas.values():
            replica.become(Health("down", "refused"))
        for step in range(60):
            ladder.step(NOW + step / 2, WALL + step / 2)
        next(iter(best.replicas.values())).become(Health("ready"))
        ladder.step(NOW + 30, WALL + 30)
        assert best.share == 1.0
        assert served(fleet, "sheddable", NOW + 30) == {"best": 1000}

    async def test_what_failed_as_it_went_down_holds_nothing_back_when_it_is_well_again(
        self, store: MemoryStateStore
    ) -> None:
        """All attempts fail for two seconds before anyone knows why, then everything is gone, then everything is back."""
        fleet = two_tiers()
        ladder, best = Ladder(fleet, store), fleet.tiers["best"]
        names = list(best.replicas)
        for step in range(4):
            now = NOW + step / 2
            for n in range(30):
                best.recent.ended(names[n % 2], True, now)
                best.recent.first_token(4.0, now)
            ladder.step(now, WALL)
        assert best.share < 0.8
        for replica in best.replicas.values():
            replica.become(Health("down", "refused"))
        for step in range(4, 8):
            ladder.step(NOW + step / 2, WALL)
        for replica in best.replicas.values():
            replica.become(Health("ready"))
        shares = []
        for step in range(8, 20):
            ladder.step(NOW + step / 2, WALL)
            shares.append(best.share)
        assert shares == [1.0] * 12

    async def test_replicas_that_pause_as_they_are_full_are_no_loss(self, store: MemoryStateStore) -> None:
        fleet = two_tiers()
        ladder, best = Ladder(fleet, store), fleet.tiers["best"]
        for replica in best.replicas.values():
            replica.back_off(NOW + 60)
        for step in range(8):
            load(best, NOW + step / 2, ttft_s=3.0)
            ladder.step(NOW + step / 2, WALL)
        assert best.share < 0.5

    async def test_the_failures_of_one_replica_are_not_the_tiers(self, store: MemoryStateStore) -> None:
        fleet = two_tiers()
        ladder, best = Ladder(fleet, store), fleet.tiers["best"]
        ill, well = best.replicas.values()
        for _ in range(40):
            best.recent.ended(ill.replica, True, NOW)
        for _ in range(25):
            best.recent.ended(well.replica, False, NOW)
        assert signals_of(best, NOW).errors == pytest.approx(40 / 65 / 0.5)
        ill.become(Health("down", "reset"))
        ladder.step(NOW, WALL)
        assert (best.signals.errors, best.share) == (0.0, 1.0)

    async def test_sheddable_goes_first_and_critical_stays(self, store: MemoryStateStore) -> None:
        fleet = two_tiers()
        ladder, best = Ladder(fleet, store), fleet.tiers["best"]
        for step in range(4):
            now = NOW + step / 2
            load(best, now, ttft_s=1.25)
            ladder.step(now, WALL)
        assert best.share == pytest.approx(0.81, abs=0.02)
        assert served(fleet, "critical", now) == {"best": 1000}
        assert served(fleet, "standard", now) == {"best": 1000}
        sheddable = served(fleet, "sheddable", now)
        assert sheddable["small pressure_ttft"] == pytest.approx(560, abs=80)
        assert sum(sheddable.values()) == 1000

    async def test_who_accepts_no_lower_tier_is_not_held_back(self, store: MemoryStateStore) -> None:
        fleet = two_tiers()
        fleet.tiers["best"].allot(0.1, "pressure_ttft", (0.3, 0.0, 0.0))
        assert served(fleet, "sheddable", NOW, lowest=0) == {"best": 1000}

    async def test_a_session_stays_where_it_is(self, store: MemoryStateStore) -> None:
        fleet = two_tiers()
        best = fleet.tiers["best"]
        best.allot(0.5, "pressure_ttft", (1.0, 0.5, 0.0))
        bound = next(iter(best.replicas))
        assert served(fleet, "standard", NOW, session="s", bound=bound) == {"best": 1000}
        assert served(fleet, "standard", NOW, session="s")["best"] == pytest.approx(500, abs=60)

    async def test_rather_than_refuse_a_tier_takes_more_than_its_share(self, store: MemoryStateStore) -> None:
        fleet = two_tiers()
        fleet.tiers["best"].allot(0.0, "pressure_errors", (0.0, 0.0, 0.0))
        for replica in fleet.tiers["small"].replicas.values():
            replica.become(Health("down"))
        assert served(fleet, "standard", NOW) == {"best": 1000}

    async def test_signals_that_nobody_has_seen_press_nothing(self) -> None:
        best = two_tiers().tiers["best"]
        assert signals_of(best, NOW).named() == {
            "ttft": None, "errors": None, "queue": None, "kv": None, "lost": 0.0, "dependencies": None,
        }  # fmt: skip
        next(iter(best.replicas.values())).become(Health("down"))
        assert signals_of(best, NOW).lost == pytest.approx(0.5 / 0.75)


@pytest.mark.parametrize(
    ("uses", "ages_s", "expected"),
    [
        ([0.45, 0.45], [1.0, 1.0], 0.5),
        ([0.9, 0.9], [1.0, 1.0], 1.0),
        ([1.0, 0.8], [1.0, 1.0], 1.0),
        # nobody says, nobody has said lately, one has
        ([None, None], [0.0, 0.0], None),
        ([0.99, 0.99], [6.0, 60.0], None),
        ([0.99, 0.45], [60.0, 1.0], 0.5),
    ],
)
def test_use_of_the_kv_caches(uses: list[float | None], ages_s: list[float], expected: float | None) -> None:
    best = two_tiers().tiers["best"]
    for replica, use, age_s in zip(best.replicas.values(), uses, ages_s, strict=True):
        replica.kv_use, replica.kv_as_of = use, NOW - age_s
    found = signals_of(best, NOW).kv
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("replicas", "out", "expected"), [(4, 0, 0.0), (4, 2, 2 / 3), (4, 3, 1.0), (8, 7, 7 / 6), (1, 1, 4 / 3)]
)
def test_replicas_lost(replicas: int, out: int, expected: float) -> None:
    fleet = Fleet("chat", [tier_spec("best", replicas)], BreakerSpec(), Random(0), "")
    best = fleet.tiers["best"]
    for number, replica in enumerate(best.replicas.values()):
        replica.become(Health("down" if number < out else "ready"))
    assert signals_of(best, NOW).lost == pytest.approx(expected)


async def test_missing_features_press_the_best_tier_a_little_once_they_last() -> None:
    fleet, out = two_tiers(), [0.0]
    best, small = fleet.tiers.values()
    ladder = Ladder(fleet, MemoryStateStore(), lambda: out[0])
    shares = []
    for step in range(60):
        # All are out for half a second, then for ten seconds, then a third of them is.
        out[0] = 1.0 if step == 4 or 10 <= step < 30 else 1 / 3 if step >= 30 else 0.0
        ladder.step(NOW + step / 2, WALL)
        shares.append(best.share)
    assert set(shares[:12]) == {1.0}, "a blink is none"
    assert shares[30] == 0.8
    assert shares[59] == 1.0, "a third of them can be borne"
    assert (small.share, small.signals.dependencies) == (1.0, None)


class TestAnOperator:
    async def test_pins_a_tier_and_lets_go(self, store: MemoryStateStore) -> None:
        fleet = two_tiers()
        ladder = Ladder(fleet, store)
        ladder.pin("small", 60.0)
        assert served(fleet, "critical", NOW) == {"small pinned": 1000}
        assert served(fleet, "critical", NOW, lowest=0) == {"best": 1000}
        ladder.release()
        assert served(fleet, "critical", NOW) == {"best": 1000}

    async def test_a_pin_expires(self, store: MemoryStateStore) -> None:
        overrides = Overrides("chat", store)
        overrides.set("best", Override(0.0, "pinned", WALL + 60))
        assert overrides.of("best", WALL + 59.9) is not None
        assert overrides.of("best", WALL + 60) is None

    async def test_pressure_does_not_move_what_is_pinned(self, store: MemoryStateStore) -> None:
        fleet = two_tiers()
        ladder, best = Ladder(fleet, store), fleet.tiers["best"]
        ladder.pin("best", 1e6)
        for step in range(10):
            load(best, NOW + step / 2, ttft_s=3.0)
            ladder.step(NOW + step / 2, WALL)
        assert (best.share, best.pressure) == (1.0, 1.0)

    async def test_an_unknown_tier_is_told_so(self, store: MemoryStateStore) -> None:
        with pytest.raises(KeyError):
            Ladder(two_tiers(), store).pin("nope", 60.0)
        with pytest.raises(KeyError):
            Ladder(two_tiers(), store).override("nope", 0.5, 60.0)


class TestOverridesAreShared:
    async def test_every_gateway_heeds_them(self, store: MemoryStateStore) -> None:
        one, other = Overrides("chat", store), Overrides("chat", store)
        one.set("best", Override(0.5, "override", WALL + 60))
        await one.exchange(WALL)
        await other.exchange(WALL)
        assert other.of("best", WALL) == Override(0.5, "override", WALL + 60)
        other.set("best", None)
        await other.exchange(WALL)
        await one.exchange(WALL)
        assert one.of("best", WALL) is None

    async def test_without_the_store_they_hold_here_and_are_told_later(self) -> None:
        class Breaks(MemoryStateStore):
            is_down = True

            async def scan(self, group: str) -> dict[str, bytes]:
                if self.is_down:
                    raise StateStoreUnavailable("down")
                return await super().scan(group)

            async def put(self, *args: object, **kwargs: object) -> bool:
                if self.is_down:
                    raise StateStoreUnavailable("down")
                return await super().put(*args, **kwargs)  # type: ignore[arg-type]

        store = Breaks()
        overrides, other = Overrides("chat", store), Overrides("chat", store)
        overrides.set("best", Override(0.5, "override", WALL + 60))
        await overrides.exchange(WALL)
        assert overrides.of("best", WALL) is not None
        store.is_down = False
        await overrides.exchange(WALL)
        await other.exchange(WALL)
        assert other.of("best", WALL) == overrides.of("best", WALL)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"tire": "x"}', b'{"tier": 3}', b'{"share": 0.5}', b'{"tier": "a", "share": 2}',
     b'{"tier": "a", "share": true}', b'{"tier": "a", "for_s": 0}', b'{"tier": "a", "for_s": -1}', b'{"model": 1}'],
)  # fmt: skip
def test_what_is_no_pin(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_pin(body)


def test_a_pin_lasts_a_quarter_of_an_hour() -> None:
    pin = read_pin(b'{"tier": "small"}')
    assert (pin.model, pin.tier, pin.share, pin.for_s) == (None, "small", None, 900.0)
    assert read_pin(b'{"tier": null}').tier is None


def test_a_refusal_never_names_the_ladder() -> None:
    fleet = two_tiers()
    fleet.tiers["best"].allot(0.0, "pinned", (0.0, 0.0, 0.0))
    for tier in fleet.tiers.values():
        for replica in tier.replicas.values():
            replica.become(Health("down"))
    facts = Facts("chat", NOW, NOW + 60, lowest_tier=1)
    decision = decide(facts, fleet.snapshot(NOW, True, {}), (), NOW, Random(0), ROUTE)
    assert isinstance(decision, Shed)
    assert decision.reason == "no_replica"
