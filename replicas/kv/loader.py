"""Loads blocks from Redis into the cache, off the model's thread; what does not come whole and in time is a miss."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from replicas.kv.paged_cache import PagedCache, Rows
from replicas.kv.step_plan import Loaded, Transfer
from state_store.kv.block_format import HEAD_BYTES, BlockId, is_compressed, unpack
from state_store.kv.block_store import BlockStore, BlocksUnavailable

_BATCH = 4
"""Blocks that a thread checks and copies at a time."""
_AGAIN_S, _MOST_TRIES = 0.15, 6
"""Together longer than the store's breaker keeps out everybody at first, and than one that tries it takes."""
_IDLE_S = 0.005
"""How long a step that computes nothing waits for a load to end: requests that come meanwhile wait as long at most."""
_BAD = frozenset({"truncated", "foreign", "corrupted"})


@dataclass(slots=True)
class _Load:
    """One request's load, in parts."""

    transfer: Transfer
    begun: float
    parts_left: int
    failed: list[int] = field(default_factory=list)
    bad: list[BlockId] = field(default_factory=list)
    """Blocks that are there and no good: gone, they can be written anew."""


class Loader:
    """A few threads, each with a connection of its own and room for a batch of blocks."""

    def __init__(
        self,
        cache: PagedCache,
        store: BlockStore,
        fingerprint: bytes,
        threads: int,
        missed: Callable[[str, int], None],
    ) -> None:
        self._cache, self._store, self._fingerprint = cache, store, fingerprint
        self._threads, self._missed = threads, missed
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kv-load")
        self._room = threading.local()
        self._lock = threading.Condition()
        self._under_way = 0
        self._finished: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._results: list[Loaded] = []

    def start(self, transfer: Transfer) -> None:
        """Begins to load; `take_finished` names the request when it is over, however it went."""
        parts = _split(len(transfer.hashes), self._threads)
        load = _Load(transfer, time.monotonic(), len(parts))
        with self._lock:
            self._under_way += 1
        for part in parts:
            self._pool.submit(self._run, load, part)

    def wait_a_little(self) -> None:
        """Returns when a load has ended, or after a moment: the thread that asks leaves the interpreter to the loads."""
        with self._lock:
            if self._under_way and not self._finished:
                self._lock.wait(_IDLE_S)

    def take_finished(self) -> tuple[set[str], set[int], list[Loaded]]:
        """What ended since the last call: requests, cache blocks that hold nothing good, and how each load went."""
        with self._lock:
            taken = self._finished, self._failed_blocks, self._results
            self._finished, self._failed_blocks, self._results = set(), set(), []
        return taken

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, load: _Load, part: range) -> None:
        failed = list(part)
        try:
            failed = self._load(load, part)
            self._discard(load)
        finally:
            self._part_done(load, failed)

    def _load(self, load: _Load, part: range) -> list[int]:
        """Loads the blocks of `part`; which of them are misses."""
        failed: list[int] = []
        rows, raw = self._rows()
        blocks = [BlockId(self._fingerprint, load.transfer.hashes[at]) for at in part]
        good: list[int] = []
        verdicts = self._verdicts(blocks, rows, raw, load.begun + load.transfer.patience_s)
        for at, (row, verdict) in zip(part, verdicts, strict=True):
            if verdict:
                self._missed(verdict, 1)
                failed.append(at)
                if verdict in _BAD:
                    load.bad.append(blocks[at - part.start])
            else:
                good.append(at)
            if good and (row == _BATCH - 1 or at == part[-1] or verdict):
                self._scatter(load.transfer, good, rows, row + (not verdict))
                good = []
        return failed

    def _scatter(self, transfer: Transfer, good: list[int], rows: Rows, end: int) -> None:
        """Copies the good blocks, which lie in the rows before `end`, into the cache."""
        ids = [transfer.block_ids[at] for at in good]
        self._cache.scatter(rows[end - len(good) : end], ids)

    def _verdicts(
        self, blocks: Sequence[BlockId], rows: Rows, raw: Rows, deadline: float
    ) -> Iterator[tuple[int, str]]:
        """Each block's row, and what is wrong with it.

        After a failure of the server the rest is asked for again while there is time: what comes after the first miss is
        of no use. Then all that are left are misses.
        """
        places = [memoryview(rows[number % _BATCH]) for number in range(len(blocks))]
        done = 0
        for _ in range(_MOST_TRIES):
            try:
                for number, size in enumerate(
                    self._store.fetch(blocks[done:], places[done:], deadline), done
                ):
                    yield number % _BATCH, self._verdict(blocks[number], places[number], raw, size)
                    done = number + 1
                return
            except BlocksUnavailable:
                if time.monotonic() + _AGAIN_S > deadline:
                    break
                time.sleep(_AGAIN_S)
        for number in range(done, len(blocks)):
            yield number % _BATCH, "unavailable"

    def _verdict(self, block: BlockId, place: memoryview, raw: Rows, size: int | None) -> str:
        if size is None:
            return "absent"
        if size > len(place):
            return "foreign"
        verdict = unpack(block, place[:size], memoryview(raw[0]))
        if not verdict and is_compressed(place):
            place[HEAD_BYTES:] = memoryview(raw[0])
        return verdict

    def _discard(self, load: _Load) -> None:
        with self._lock:
            bad, load.bad = load.bad, []
        if bad:
            with suppress(BlocksUnavailable):
                self._store.discard(bad)

    def _rows(self) -> tuple[Rows, Rows]:
        """This thread's own room: for a batch as it comes, and for one block decompressed."""
        if not hasattr(self._room, "rows"):
            self._room.rows = self._cache.rows(_BATCH, HEAD_BYTES)
            self._room.raw = self._cache.rows(1)
        return self._room.rows, self._room.raw

    def _part_done(self, load: _Load, failed: list[int]) -> None:
        with self._lock:
            load.failed += failed
            load.parts_left -= 1
            if load.parts_left:
                return
            transfer, failures = load.transfer, len(load.failed)
            loaded = (len(transfer.hashes) - failures) * (HEAD_BYTES + self._cache.block_bytes)
            self._failed_blocks |= {transfer.block_ids[at] for at in load.failed}
            self._finished.add(transfer.request)
            self._results.append(Loaded(loaded, time.monotonic() - load.begun, failures))
            self._under_way -= 1
            self._lock.notify()


def _split(count: int, parts: int) -> list[range]:
    """`count` things in at most so many runs of about the same length."""
    size = -(-count // parts)
    return [range(first, min(first + size, count)) for first in range(0, count, size)]
