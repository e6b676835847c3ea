"""The chronicle on file: what happened and what became of requests, kept in the store so that it outlives this process.

Ten seconds a row, ten minutes a page, each page six hours: bounded in size, and small enough to be read at once. Pages
that could not be filed, as the store was away, are filed when it is back.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from time import time
from typing import Any

import orjson

from gateway.beside import Beside
from gateway.events import Event, EventLog
from gateway.shares import Counts, TierShares
from state_store.patience import patiently
from state_store.protocol import StateStore, StateStoreUnavailable

GROUP = "chronicle"
ROW_S = 10.0
PAGE_S = 600.0
KEPT_S = 6 * 3600.0
FILED_EVERY_S = 2.0
KINDS: dict[str, str] = {
    "tier": "tiers", "reason": "reasons", "shed": "sheds", "stream": "streams", "given_up": "given_up",
    "feature": "features",
}  # fmt: skip

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Watched:
    """What is on file of one model: what became of its requests, and the tiers that are held back, by their share."""

    shares: TierShares
    held: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Told:
    """What is known of the last hours, oldest page first."""

    pages: list[Json]
    is_whole: bool
    """Whether the store was asked too: without it, other gateways and former lives are missing."""


@dataclass(slots=True)
class Page:
    """Ten minutes of one gateway."""

    gateway: str
    begins_at: float
    rows: list[Json] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    is_filed: bool = False

    @property
    def key(self) -> str:
        return f"{self.gateway}:{self.begins_at:.0f}"


class Archive(Beside):
    """One gateway's pages, and those of others that are on file. Times are Unix seconds."""

    def __init__(
        self, gateway: str, store: StateStore, events: EventLog, watched: Callable[[], Mapping[str, Watched]]
    ) -> None:
        self._gateway, self._store, self._events, self._watched = gateway, store, events, watched
        self._pages: list[Page] = []
        self._counted: dict[str, Counts] = {}
        self._began_at = time()
        self._has_recalled = False

    async def open(self) -> None:
        """Takes over what was told before this gateway started, and begins to file."""
        with suppress(StateStoreUnavailable):
            await self._recall(self._began_at)
        self.start()

    async def stop(self) -> None:
        """What has not been filed yet is, if the store can be reached."""
        await super().stop()
        if self.has_begun:
            self.enter(time())
            with suppress(StateStoreUnavailable):
                await patiently(self._file)

    async def _run(self) -> None:
        due = time() + ROW_S
        while True:
            await asyncio.sleep(FILED_EVERY_S)
            if time() >= due or self._has_news():
                self.enter(time())
                due = max(due, time() // ROW_S * ROW_S + ROW_S)
            with suppress(StateStoreUnavailable):
                await self._recall(self._began_at)
                await self._file()

    def _has_news(self) -> bool:
        newest = self._events.newest(1)
        told = self._pages[-1].events if self._pages else []
        return bool(newest) and (not told or newest[0].last_at > max(e["last_at"] for e in told))

    def enter(self, now: float) -> None:
        """Enters what became of requests since the last time, and what happened."""
        page = self._page(now)
        models = {name: row for name, one in self._watched().items() if (row := self._row(name, one))}
        at = now // ROW_S * ROW_S
        if models and page.rows and page.rows[-1]["at"] == at:
            page.rows[-1]["models"] = _summed(page.rows[-1]["models"], models)
        elif models:
            page.rows.append({"at": at, "models": models})
        page.events = [asdict(e) for e in self._events.newest() if page.begins_at <= e.last_at <= now]
        page.is_filed = False

    def _page(self, now: float) -> Page:
        begins_at = now // PAGE_S * PAGE_S
        if not self._pages or self._pages[-1].begins_at != begins_at:
            self._pages.append(Page(self._gateway, begins_at))
        self._pages = [p for p in self._pages if now - p.begins_at < KEPT_S]
        return self._pages[-1]

    def _row(self, model: str, watched: Watched) -> Json:
        before, totals = self._counted.get(model, Counts()), Counts(watched.shares.totals)
        self._counted[model] = totals
        row: Json = {}
        for (kind, name), count in totals.items():
            if (more := count - before[kind, name]) > 0:
                row.setdefault(KINDS.get(kind, kind), {})[name] = more
        held = {tier: round(share, 3) for tier, share in watched.held.items()}
        return row | ({"held": held} if held else {})

    async def _file(self) -> None:
        """Raises StateStoreUnavailable; what was not filed then is the next time."""
        for page in self._pages:
            if page.is_filed:
                continue
            raw = orjson.dumps({k: v for k, v in asdict(page).items() if k != "is_filed"})
            await self._store.put(GROUP, page.key, raw, ttl_s=KEPT_S)
            page.is_filed = True

    async def told(self, now: float) -> Told:
        """All that is known, of other gateways and former lives too. Waits a little for a store that is slow."""
        self.enter(now)
        own = {page.key: asdict(page) for page in self._pages}
        try:
            on_file, is_whole = await patiently(self._on_file), True
        except StateStoreUnavailable:
            on_file, is_whole = {}, False
        return Told(sorted((on_file | own).values(), key=lambda page: page["begins_at"]), is_whole)

    async def _on_file(self) -> dict[str, Json]:
        found = await self._store.scan(GROUP)
        return {key: page for key, raw in found.items() if (page := _read(raw)) is not None}

    async def _recall(self, now: float) -> None:
        """Takes over what was told before `now`. Raises StateStoreUnavailable; the next time it is all taken over."""
        if not self._has_recalled:
            events = [Event(**e) for page in (await self._on_file()).values() for e in page["events"]]
            self._events.recall(sorted((e for e in events if e.last_at <= now), key=lambda e: e.at))
            self._has_recalled = True


def _read(raw: bytes) -> Json | None:
    """A page; None for what is none."""
    try:
        page: Json = orjson.loads(raw)
        [Event(**event) for event in page["events"]]
        [(row["at"], row["models"]) for row in page["rows"]]
        float(page["begins_at"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None
    return page


def _summed(one: Json, other: Json) -> Json:
    """Two rows of the same ten seconds as one: counts are added, of shares the newer holds."""
    models = {**one}
    for model, row in other.items():
        had: Json = models.get(model, {})
        models[model] = had | {
            kind: counts if kind == "held" else _added(had.get(kind, {}), counts)
            for kind, counts in row.items()
        }
    return models


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
