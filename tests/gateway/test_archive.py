"""The chronicle on file: it outlives its gateway, waits for the store, and stays small."""

from collections.abc import Mapping

import orjson

from gateway.archive import KEPT_S, Archive, Watched
from gateway.events import EventLog
from gateway.shares import TierShares
from state_store.memory import MemoryStateStore
from tests.gateway.test_agreement import Store

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
    pages = [p for p in await second.archive.pages(AT + 60) if p["rows"]]
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
    (page, *_) = await one.archive.pages(AT + 42)
    assert [(r["at"] - AT, r["models"]["chat"]["tiers"]["best"]) for r in page["rows"]] == [
        (0, 5),
        (10, 4),
        (40, 1),
    ]


async def test_a_tier_that_is_held_back_is_on_file_without_traffic() -> None:
    one = Gateway("one", MemoryStateStore())
    one.held = {"best": 0.4}
    one.archive.enter(AT)
    (page, *_) = await one.archive.pages(AT)
    assert page["rows"][0]["models"] == {"chat": {"held": {"best": 0.4}}}


async def test_pages_wait_for_the_store() -> None:
    store = Store()
    one, other = Gateway("one", store), Gateway("other", store)
    store.is_away = True
    for minute in range(25):
        one.serve("best")
        await one.file(AT + 60 * minute)
    assert len(await one.archive.pages(AT + 1450)) >= 3
    assert [p for p in await other.archive.pages(AT + 1500) if p["rows"]] == []
    store.is_away = False
    await one.file(AT + 1500)
    found = [p for p in await other.archive.pages(AT + 1500) if p["rows"]]
    assert [p["begins_at"] - AT for p in found] == [0, 600, 1200]
    assert sum(len(p["rows"]) for p in found) == 25


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
    assert [p["gateway"] for p in await one.archive.pages(AT)] == ["one"]
