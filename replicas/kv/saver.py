"""Saves full blocks to Redis behind the model's back: one thread, in order, at most a bounded backlog.

Blocks are copied out of the cache when their turn comes, so a request that ended keeps its own until then; the model
and its scheduler never wait for either.
"""

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from replicas.kv.paged_cache import PagedCache, Rows
from replicas.kv.step_plan import Ended, Transfer
from state_store.kv.block_format import BlockId, Codec, pack, stored_bytes
from state_store.kv.block_store import BlockStore, BlocksUnavailable, Outgoing
from state_store.kv.budget import Use

_log = logging.getLogger("vllm.graceway.kv")
_BATCH = 4
_PATIENCE_S = 0.5
"""For what is there already: nobody waits for it, and Redis may be kept from answering by who computes beside it."""
_SECOND_TRY_S = 0.3
"""Longer than the store's breaker keeps out everybody at first."""


@dataclass(slots=True)
class _Job:
    transfer: Transfer
    ready: Any
    """The mark after which the blocks hold what was computed."""
    is_copied: bool = False
    is_forgotten: bool = False


Count = Callable[[str, float], None]


class Saver:
    """The thread and its queue. `count` is told of what is done, by name.

    With `acknowledges`, blocks count as saved when Redis's own replicas have them, too, as many as the URL asks for.
    """

    def __init__(
        self,
        cache: PagedCache,
        store: BlockStore,
        fingerprint: bytes,
        count: Count,
        *,
        codec: Codec = "none",
        acknowledges: bool = False,
        most_blocks: int = 1024,
    ) -> None:
        self._cache, self._store, self._fingerprint, self._count = cache, store, fingerprint, count
        self._codec, self._acknowledges, self._most_blocks = codec, acknowledges, most_blocks
        self._stored_bytes = stored_bytes(cache.block_bytes, codec, cache.dtype)
        self._queue: deque[_Job | Ended] = deque()
        self._changed = threading.Condition()
        self._current: _Job | None = None
        self._copying = threading.Lock()
        """Held while blocks are copied out of the cache."""
        self._queued_blocks = 0
        self._pending: Counter[str] = Counter()
        """Transfers of each request whose blocks were not copied yet."""
        self._ended: set[str] = set()
        self._incomplete: set[str] = set()
        """Requests of which something was not stored, or was let go of again."""
        self._stored: defaultdict[str, set[bytes]] = defaultdict(set)
        """Keys of each request that is to be acknowledged."""
        self._is_closing = self._is_lost = False
        self._thread = threading.Thread(target=self._work, name="kv-save", daemon=True)
        self._thread.start()

    def save(self, transfer: Transfer, ready: Any = None) -> None:
        """Queues blocks; refuses them, and counts that, when the backlog is full."""
        with self._changed:
            if self._queued_blocks + len(transfer.hashes) > self._most_blocks:
                self._incomplete.add(transfer.request)
                self._count("save_dropped_blocks", len(transfer.hashes))
                return
            self._queued_blocks += len(transfer.hashes)
            self._pending[transfer.request] += 1
            self._queue.append(_Job(transfer, ready))
            self._changed.notify()

    def end(self, ended: Ended) -> None:
        """The request is over: `take_copied` names it once its blocks are no longer needed."""
        with self._changed:
            self._ended.add(ended.request)
            self._queue.append(ended)
            self._changed.notify()

    def take_copied(self) -> set[str]:
        """Requests that are over and whose blocks may be used for others."""
        with self._changed:
            copied = {request for request in self._ended if not self._pending[request]}
            self._ended -= copied
            for request in copied:
                del self._pending[request]
            return copied

    def forget(self, requests: frozenset[str]) -> None:
        """Their blocks are about to be overwritten: returns when none is being copied, and none will be."""
        with self._changed:
            jobs = [*self._queue, *([self._current] if self._current else [])]
            for job in jobs:
                if isinstance(job, _Job) and job.transfer.request in requests:
                    job.is_forgotten = True
        with self._copying:
            pass

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not self._queue and self._current is None

    def close(self, timeout_s: float = 2.0) -> None:
        """Lets what is queued go out, if that takes no longer than `timeout_s`."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        rows = self._cache.rows(_BATCH)
        while (job := self._next()) is not None:
            if isinstance(job, Ended):
                self._acknowledge(job)
                continue
            self._try(job, rows)

    def _try(self, job: _Job, rows: Rows) -> None:
        begun = time.thread_time()
        try:
            self._save_by_two_tries(job, rows)
            self._is_lost = False
        except BlocksUnavailable:
            self._failed(job)
        except Exception:
            # Without this thread no block would come free any more, and the engine would stand still.
            _log.exception("KV blocks are not saved")
            self._failed(job)
        finally:
            self._count("save_cpu_seconds", time.thread_time() - begun)
            self._done(job)

    def _save_by_two_tries(self, job: _Job, rows: Rows) -> None:
        """Saves, and once more after a moment if Redis does not answer: a hole makes what comes after it useless.

        Not where the last one was lost already: for a Redis that stays away, the cache is not to be kept from others.
        """
        try:
            self._save(job, rows)
        except BlocksUnavailable:
            if self._is_lost or self._is_closing or job.is_copied:
                raise
            time.sleep(_SECOND_TRY_S)
            self._save(job, rows)

    def _failed(self, job: _Job) -> None:
        self._is_lost = True
        self._incomplete.add(job.transfer.request)
        self._count("save_failed_blocks", len(job.transfer.hashes))

    def _next(self) -> _Job | Ended | None:
        """The next in the queue, as soon as there is one; None when it is to end."""
        with self._changed:
            while not self._queue and not self._is_closing:
                self._changed.wait()
            if not self._queue:
                return None
            job = self._queue.popleft()
            self._current = job if isinstance(job, _Job) else None
            return job

    def _save(self, job: _Job, rows: Rows) -> None:
        """Stores those of the job's blocks that are not there yet, and tells the budget of all."""
        transfer = job.transfer
        blocks = [BlockId(self._fingerprint, block_hash) for block_hash in transfer.hashes]
        missing = [at for at, is_there in enumerate(self._store.exist(blocks, _PATIENCE_S)) if not is_there]
        new: set[BlockId] = set()
        for first in range(0, len(missing), _BATCH):
            batch = missing[first : first + _BATCH]
            if not self._copy(job, batch, rows):
                self._incomplete.add(transfer.request)
                return
            if first + _BATCH >= len(missing):
                self._copied(job)
            new |= self._write([blocks[at] for at in batch], rows)
        uses = [
            Use(block.key, self._stored_bytes, depth, block in new)
            for depth, block in enumerate(blocks, transfer.depth)
        ]
        self._account(transfer.request, uses)

    def _account(self, request: str, uses: list[Use]) -> None:
        """Tells the budget. A turn of which it lets something go, as all of it does not fit, is not stored."""
        gone = self._store.count(uses, must_be_copied=self._acknowledges)
        self._count("evicted_blocks", len(gone))
        if self._acknowledges:
            self._stored[request].update(use.key for use in uses)
            self._incomplete |= {name for name, keys in self._stored.items() if keys & gone}

    def _copy(self, job: _Job, batch: list[int], rows: Rows) -> bool:
        """Copies blocks out of the cache, unless they were forgotten."""
        with self._copying:
            if job.is_forgotten:
                return False
            ids = [job.transfer.block_ids[at] for at in batch]
            self._cache.gather(ids, rows[: len(ids)], job.ready)
            return True

    def _write(self, blocks: list[BlockId], rows: Rows) -> set[BlockId]:
        """Which of them are new in the store."""
        outgoing = []
        for block, row in zip(blocks, rows, strict=False):
            head, payload = pack(block, memoryview(row), self._codec, self._cache.dtype)
            outgoing.append(Outgoing(block, head, payload))
        written = self._store.store(outgoing)
        new = [out for out, is_new in zip(outgoing, written, strict=True) if is_new]
        self._count("saved_blocks", len(new))
        self._count("saved_bytes", sum(out.size_bytes for out in new))
        return {out.block for out in new}

    def _acknowledge(self, ended: Ended) -> None:
        """Says that the turn is stored, if all of it is."""
        is_whole = ended.request not in self._incomplete
        self._incomplete.discard(ended.request)
        self._stored.pop(ended.request, None)
        if not ended.turn or not is_whole:
            return
        try:
            self._store.acknowledge(ended.turn)
        except BlocksUnavailable:
            self._count("unacknowledged_turns", 1)

    def _copied(self, job: _Job) -> None:
        """The job needs the cache no longer."""
        with self._changed:
            if not job.is_copied:
                job.is_copied = True
                self._pending[job.transfer.request] -= 1

    def _done(self, job: _Job) -> None:
        self._copied(job)
        with self._changed:
            self._queued_blocks -= len(job.transfer.hashes)
            self._current = None
