"""The chronicle on file: it outlives its gateway, waits for the store, and stays small."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from time import time

import orjson

from gateway.archive import FILED_EVERY_S, KEPT_S, Archive, Watched
from gateway.events import EventLog
from gateway.shares import TierShares
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStoreUnavailable
from tests.gateway.test_agreement import Store
from tests.virtual_time import run

AT = 1_700_000_400.0
"""Ten minutes begin here."""


class Gateway:
    """What an archive is told."""

    def __init__(self, name: str, store: MemoryStateStore) -> None:
        self.shares, self.events, self.held = TierShares(), EventLog(), dict[str, float]()
        self.archive = Archive(name, store, self.events, self._watched)

    def _watched(self) -> Mapping[str, Watched]:
        return {"chat": Watched(self.shares, self.held)}

    def serve(self, tier: str, count: int = 1) -> None:
        for _ in range(count):
            self.shares.add(tier, 1.0)

    async def file(self, now: float) -> None:
        self.archive.enter(now)
        with suppress(StateStoreUnavailable):
            await self.archive._file()


async def test_what_is_on_file_outlives_the_gateway_and_is_told_to_the_next() -> None:
    store = MemoryStateStore()
    first = Gateway("first", store)
    first.serve("small", 3)
    first.shares.degraded("no_replica", 1.0)
    first.shares.shed("queue_full", 1.0)
    first.shares.feature("profile", "default", 1.0)
    first.events.add("health", "r is down", AT + 1)
    await first.file(AT + 2)
    second = Gateway("second", store)
    second.events.add("gateway", "it starts", AT + 59)
    await second.archive._recall(AT + 60)
    assert [e.text for e in second.events.newest()] == ["it starts", "r is down"]
    pages = [p for p in (await second.archive.told(AT + 60)).pages if p["rows"]]
    assert [p["gateway"] for p in pages] == ["first"]
    assert pages[0]["rows"] == [
        {
            "at": AT,
            "models": {
                "chat": {
                    "tiers": {"small": 3},
                    "reasons": {"no_replica": 1},
                    "sheds": {"queue_full": 1},
                    "features": {"profile/default": 1},
                }
            },
        }
    ]


async def test_counts_are_those_since_the_last_look_ten_seconds_a_row() -> None:
    one = Gateway("one", MemoryStateStore())
    for now, count in ((AT + 1, 2), (AT + 9, 3), (AT + 11, 4), (AT + 30, 0), (AT + 41, 1)):
        one.serve("best", count)
        one.archive.enter(now)
    (page, *_) = (await one.archive.told(AT + 42)).pages
    assert [(r["at"] - AT, r["models"]["chat"]["tiers"]["best"]) for r in page["rows"]] == [
        (0, 5),
        (10, 4),
        (40, 1),
    ]


async def test_a_tier_that_is_held_back_is_on_file_without_traffic() -> None:
    one = Gateway("one", MemoryStateStore())
    one.held = {"best": 0.4}
    one.archive.enter(AT)
    (page, *_) = (await one.archive.told(AT)).pages
    assert page["rows"][0]["models"] == {"chat": {"held": {"best": 0.4}}}


def test_pages_wait_for_the_store() -> None:
    async def scenario() -> None:
        store = Store()
        one, other = Gateway("one", store), Gateway("other", store)
        store.is_away = True
        for minute in range(25):
            one.serve("best")
            await one.file(AT + 60 * minute)
        assert len((await one.archive.told(AT + 1450)).pages) >= 3
        told = await other.archive.told(AT + 1500)
        assert [p for p in told.pages if p["rows"]] == []
        assert not told.is_whole
        store.is_away = False
        await one.file(AT + 1500)
        told = await other.archive.told(AT + 1500)
        found = [p for p in told.pages if p["rows"]]
        assert [p["begins_at"] - AT for p in found] == [0, 600, 1200]
        assert sum(len(p["rows"]) for p in found) == 25
        assert told.is_whole

    run(scenario())


class Stuttering(Store):
    """A store behind a breaker: after a call that took too long it gives no answer for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.refusals = 0

    def _reach(self) -> None:
        if self.refusals > 0:
            self.refusals -= 1
            raise StateStoreUnavailable("not tried again yet")


def test_a_store_that_gives_no_answer_for_a_moment_loses_nothing() -> None:
    async def scenario() -> None:
        store = Stuttering()
        first, second, third = Gateway("first", store), Gateway("second", store), Gateway("third", store)
        await first.archive.open()
        first.serve("small")
        first.events.add("health", "r is down", time() - 1)
        store.refusals = 5
        await first.archive.stop()
        store.refusals = 5
        told = await second.archive.told(time())
        assert [p["gateway"] for p in told.pages if p["rows"]] == ["first"]
        assert told.is_whole
        store.refusals = 1
        await third.archive.open()
        assert third.events.newest() == []
        await asyncio.sleep(2 * FILED_EVERY_S)
        assert [e.text for e in third.events.newest()] == ["r is down"]
        await third.archive.stop()

    run(scenario())


async def test_six_hours_of_traffic_are_less_than_a_megabyte() -> None:
    one = Gateway("one", MemoryStateStore())
    for row in range(int(2 * KEPT_S / 10)):
        for tier in ("primary", "small", "canned"):
            one.serve(tier)
        one.shares.degraded("queue_full", 1.0)
        one.shares.shed("queue_full", 1.0)
        one.archive.enter(AT + 10 * row)
    pages = one.archive._pages
    assert len(pages) == KEPT_S / 600
    assert sum(len(orjson.dumps(page)) for page in pages) < 1_000_000


async def test_what_is_no_page_is_ignored() -> None:
    store = MemoryStateStore()
    for number, raw in enumerate((b"", b"[]", b"{}", b'{"begins_at": 1, "rows": [3], "events": []}')):
        await store.put("chronicle", str(number), raw, ttl_s=9.0)
    one = Gateway("one", store)
    await one.archive._recall(AT)
    assert [p["gateway"] for p in (await one.archive.told(AT)).pages] == ["one"]
