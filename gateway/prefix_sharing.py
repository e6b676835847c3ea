"""Keeps one model's prefix index the same on all gateways: tells what was routed here, and follows what others tell.

News travel through a topic of the store, in one order for all, in batches. Now and then one gateway leaves the whole
index beside it, so that one which starts knows what all knew, even if none of them runs any more.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from uuid import uuid4

import orjson

from gateway.policy.prefix import PrefixIndex, tokens_of
from state_store.prefix_news import (
    Held,
    News,
    Routed,
    from_bytes,
    packed,
    to_bytes,
    token_chain,
    topic_of,
    unpacked,
)
from state_store.protocol import StateStore, StateStoreUnavailable

log = logging.getLogger("graceway.prefix")

EXCHANGE_S = 0.2
MAX_BATCHES = 2048
BATCH_BLOCKS = 256
"""Hashes in one piece of news; together they bound the topic to 8 MiB."""
KEPT_BATCHES, KEPT_PROMPTS = 256, 8192
COPY_EVERY_S = 60.0
COPY_TTL_S = 24 * 3600.0
CHUNK = 4096

Seen = tuple[str, tuple[int, ...], list[int], int]
Entry = tuple[int, int, tuple[str, ...]]


class PrefixSharing:
    """One gateway's part. `index` is current as long as `run` runs, give or take `EXCHANGE_S`."""

    def __init__(self, model: str, store: StateStore, index: PrefixIndex) -> None:
        self._topic, self._group = topic_of(model), f"prefix_copy:{model}"
        self._store, self.index = store, index
        self._me = uuid4().hex
        self._seen: list[Seen] = []
        self._untold: list[Routed] = []
        self._told: set[tuple[str, int]] = set()
        self._place = ""
        self._changed = False
        self._is_stopping = asyncio.Event()

    def routed(self, replica: str, chain: tuple[int, ...], prompt_ids: list[int], size_bytes: int) -> None:
        """A replica has computed a prompt. Others hear of it with the next exchange."""
        if not chain:
            return
        self.index.add(replica, chain)
        if (replica, chain[-1]) not in self._told:
            self._told.add((replica, chain[-1]))
            self._seen.append((replica, chain, prompt_ids, size_bytes))

    def stop(self) -> None:
        """Has `run` end once it has told what it has."""
        self._is_stopping.set()

    async def run(self) -> None:
        """Until it is stopped."""
        is_restored = is_last = False
        while not is_last:
            is_last = self._is_stopping.is_set()
            self._gather()
            try:
                is_restored = is_restored or await self._restore()
                await self.exchange()
                await self._copy()
            except StateStoreUnavailable:
                pass
            except Exception:
                # What others tell must not end what this gateway tells; a copy that can't be read stays so.
                is_restored = True
                log.exception("prefixes are not exchanged")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), EXCHANGE_S)

    def _gather(self) -> None:
        """Makes news of what was seen. Of what the store does not take, the newest is kept."""
        seen, self._seen = self._seen, []
        for news in _batches(self._me, seen):
            self.index.link(news.texts, news.tokens)
            self._untold.append(news)
        del self._untold[:-KEPT_BATCHES]
        if len(self._told) > KEPT_PROMPTS:
            self._told.clear()

    async def exchange(self) -> None:
        """Tells and listens, once.

        Raises:
            StateStoreUnavailable
        """
        self._gather()
        while self._untold:
            await self._store.append(self._topic, to_bytes(self._untold[0]), max_values=MAX_BATCHES)
            del self._untold[0]
        while batch := await self._store.read(self._topic, self._place):
            for self._place, raw in batch:
                news_of = from_bytes(raw)
                if news_of is not None:
                    self._take(news_of)

    def _take(self, news: News) -> None:
        self._changed = True
        if isinstance(news, Held):
            if news.is_anew:
                self.index.forget(news.replica)
            self.index.removed(news.replica, news.removed)
            self.index.stored(news.replica, news.added)
        elif news.teller != self._me:
            self.index.add(news.replica, news.texts)
            self.index.link(news.texts, news.tokens)

    async def _copy(self) -> None:
        """Leaves the whole index in the store, if it is this gateway's turn and something has changed."""
        if not self._changed:
            return
        mine = await self._store.put(
            self._group, "lease", self._me.encode(), ttl_s=COPY_EVERY_S, only_if_absent=True
        )
        if mine:
            self._changed = False
            await self._write(self.index.entries(), self._place)

    async def _write(self, entries: Iterator[Entry], place: str) -> None:
        name, count = uuid4().hex[:8], 0
        # In a thread, as requests would wait for it here.
        while chunk := await asyncio.to_thread(_chunk_bytes, entries):
            await self._store.put(self._group, f"{name}-{count}", chunk, ttl_s=COPY_TTL_S)
            count += 1
        old = await self._store.get(self._group, "head")
        head = orjson.dumps({"name": name, "chunks": count, "place": place})
        await self._store.put(self._group, "head", head, ttl_s=COPY_TTL_S)
        for key in _chunks_of(old):
            await self._store.delete(self._group, key)

    async def _restore(self) -> bool:
        """Takes the copy, and goes on from the news after it. True when it is done, be there a copy or not.

        Raises:
            StateStoreUnavailable
        """
        head = await self._store.get(self._group, "head")
        entries: list[Entry] = []
        for key in _chunks_of(head):
            chunk = await self._store.get(self._group, key)
            if chunk is None:
                # Replaced meanwhile, or evicted: the news that are left will do.
                return True
            entries += _chunk_entries(chunk)
        self.index.restore(entries)
        if head is not None:
            self._place = str(orjson.loads(head)["place"])
        return True


def _batches(me: str, seen: list[Seen]) -> Iterator[Routed]:
    """What was seen, as news of bounded size; one replica's prompts together."""
    pairs: dict[str, dict[int, int]] = {}
    for replica, chain, prompt_ids, size_bytes in seen:
        tokens = tokens_of(chain, token_chain(prompt_ids), size_bytes)
        pairs.setdefault(replica, {}).update(zip(chain, tokens, strict=True))
    for replica, found in pairs.items():
        left = iter(found.items())
        while some := list(islice(left, BATCH_BLOCKS)):
            texts, tokens = zip(*some, strict=True)
            yield Routed(me, replica, texts, tokens)


def _chunk_bytes(entries: Iterator[Entry]) -> bytes:
    """The next `CHUNK` entries; nothing when there are no more."""
    chunk = list(islice(entries, CHUNK))
    if not chunk:
        return b""
    names = sorted({replica for _, _, holders in chunk for replica in holders})
    number_of = {name: number for number, name in enumerate(names)}
    rows = (
        (text, token, len(holders), *(number_of[replica] for replica in holders))
        for text, token, holders in chunk
    )
    return orjson.dumps(names) + b"\n" + packed(number for row in rows for number in row)


def _chunk_entries(raw: bytes) -> Iterator[Entry]:
    names, _, rows = raw.partition(b"\n")
    replicas: list[str] = orjson.loads(names)
    numbers = iter(unpacked(rows))
    for text in numbers:
        token, count = next(numbers), next(numbers)
        yield text, token, tuple(replicas[n] for n in islice(numbers, count))


def _chunks_of(head: bytes | None) -> list[str]:
    if head is None:
        return []
    said = orjson.loads(head)
    return [f"{said['name']}-{number}" for number in range(said["chunks"])]
