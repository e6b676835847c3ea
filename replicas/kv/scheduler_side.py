"""The scheduler's side: what of a request is in Redis, whether loading it pays, and which blocks a step fills.

It hardly waits: blocks are looked up in a thread as soon as a request arrives. One that is to be scheduled before the
answer is there waits a moment for it, once, and is then asked about again, step by step, up to a limit.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol

from replicas.kv.restore_policy import Choice, Link, Prefill, choose
from replicas.kv.settings import KvSettings
from replicas.kv.step_plan import MOST_PATIENCE_S, Ended, Loaded, StepPlan, Transfer
from state_store.kv.block_format import HEAD_BYTES, BlockId
from state_store.kv.block_store import BlockStore, BlocksUnavailable
from state_store.kv.turn import PARAMETER, is_kept

_log = logging.getLogger("vllm.graceway.kv")
_LOOK_UP_SHARE, _LOOK_UP_LEAST_S, _LOOK_UP_MOST_S = 0.1, 0.1, 0.5
"""A look-up may take this share of what computing would: a Redis that is late for a moment costs less than the whole prompt."""
_LOOK_UP_AGAIN_S = 0.05
_MOMENT_S = 0.002
"""What a Redis that is well needs for a look-up: less than it takes to come back to the request in another step."""
_BELIEVED_S = 2.0
"""For how long a request that waits may rely on what was found."""
_LEAST_PREFILL_TOKENS = 64
"""Steps with fewer say more about decoding than about prefill."""
_MOST_STEPS_AHEAD = 4
_LEAST_PATIENCE_S = 0.1


class EngineRequest(Protocol):
    """What is used of vLLM's `Request`."""

    request_id: str
    block_hashes: Sequence[bytes]
    num_tokens: int
    num_prompt_tokens: int
    num_computed_tokens: int
    lora_request: Any
    kv_transfer_params: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request's part in a step."""

    request: str
    computed_tokens: int
    new_tokens: int
    block_ids: Sequence[int]


@dataclass(slots=True)
class _Known:
    """A request under way."""

    request: EngineRequest
    found: "Future[int] | None" = None
    asked_at: float = 0.0
    had_its_moment: bool = False
    patience_s: float = _LOOK_UP_LEAST_S
    """How long the answer is waited for."""
    first_block: int = 0
    """Of those that would be loaded."""
    was_tried: bool = False
    """A load was begun. There is no second one: what the first did not bring is computed."""
    is_loading: bool = False
    """As long as it is, its blocks hold nothing yet, whatever the scheduler counts as computed."""
    choice: Choice | None = None
    saved_blocks: int = 0
    has_saves: bool = False


class SchedulerSide:
    """Everything that is decided about one engine's blocks. `fingerprints` are those of all its ranks."""

    def __init__(
        self,
        store: BlockStore,
        fingerprints: Sequence[bytes],
        block_tokens: int,
        block_bytes: int,
        settings: KvSettings,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._fingerprints, self._settings, self._now = store, fingerprints, settings, now
        self._block_tokens = block_tokens
        self._size_bytes = HEAD_BYTES + block_bytes
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="kv-look-up")
        self._known: dict[str, _Known] = {}
        self._plan = StepPlan()
        self._steps: deque[tuple[float, int, int]] = deque(maxlen=_MOST_STEPS_AHEAD)
        self._last_end = 0.0
        self.link, self.prefill = Link(), Prefill()
        self._counts: dict[str, float] = {}

    def arrived(self, request: EngineRequest) -> None:
        if request.lora_request is None and is_kept(request.kv_transfer_params):
            self._look_up(self._known.setdefault(request.request_id, _Known(request)))

    def matched_tokens(self, request: EngineRequest, computed_tokens: int) -> int | None:
        """Tokens beyond `computed_tokens` to load; None when that is not known yet."""
        known = self._known.get(request.request_id)
        if known is None or known.was_tried:
            return 0
        if known.found is None or self._now() - known.asked_at > _BELIEVED_S:
            self._look_up(known)
        assert known.found is not None
        if not self._is_found(known, known.found):
            return None if self._now() - known.asked_at < known.patience_s else 0
        blocks = known.found.result() - computed_tokens // self._block_tokens
        known.first_block = computed_tokens // self._block_tokens
        pays = blocks > 0 and self._choose(known, computed_tokens, blocks).restores
        return blocks * self._block_tokens if pays else 0

    def allocated(self, request: EngineRequest, block_ids: Sequence[int], external_tokens: int) -> None:
        """Blocks were set aside for what is to be loaded, or will be by another connector; `block_ids` are all of the
        request's. It has none of ours to load where there are no `external_tokens`."""
        known = self._known.get(request.request_id)
        if known is None:
            return
        known.is_loading = True
        if not external_tokens:
            return
        first, last = known.first_block, known.first_block + external_tokens // self._block_tokens
        known.was_tried = True
        hashes, ids = tuple(request.block_hashes[first:last]), tuple(block_ids[first:last])
        patience_s = max(_LEAST_PATIENCE_S, min(MOST_PATIENCE_S, _recompute_s(known.choice)))
        self._plan.loads.append(Transfer(request.request_id, hashes, ids, first, patience_s))

    def finished(self, request: EngineRequest, block_ids: Sequence[int]) -> bool:
        """The request is over. True when its blocks must stay until they were copied."""
        known = self._known.pop(request.request_id, None)
        if known is None:
            return False
        # The last token was only sampled: its block lacks it.
        computed = min(request.num_tokens - 1, request.num_computed_tokens)
        if not known.is_loading:
            self._save(known, computed, block_ids)
        if known.has_saves:
            self._plan.ended.append(Ended(request.request_id, self._turn(request)))
        return known.has_saves

    def take_plan(self, scheduled: Sequence[Scheduled], preempted: frozenset[str]) -> StepPlan:
        """The plan of the step that is about to run."""
        for request in preempted & self._known.keys():
            self._known[request].saved_blocks = 0
        prefill = first = 0
        for part in scheduled:
            known = self._known.get(part.request)
            if known is None:
                continue
            known.is_loading = False
            if self._settings.strategy != "checkpoint":
                self._save(known, part.computed_tokens + part.new_tokens, part.block_ids)
            if part.computed_tokens < known.request.num_prompt_tokens:
                prefill, first = prefill + part.new_tokens, max(first, part.computed_tokens)
        self._steps.append((self._now(), prefill, first))
        plan, self._plan = self._plan, StepPlan()
        plan.preempted, plan.is_idle = preempted, not scheduled
        return plan

    def step_done(self, loads: Sequence[Loaded]) -> None:
        """A step's output is there, with how the loads went that ended by then."""
        now = self._now()
        if self._steps:
            began, prefill, first = self._steps.popleft()
            # Steps may be planned ahead: one begins when the one before it ends.
            if prefill >= _LEAST_PREFILL_TOKENS:
                self.prefill.learn(first, prefill, now - max(began, self._last_end))
        self._last_end = now
        for load in loads:
            if load.size_bytes:
                self.link.loaded(load.size_bytes, load.seconds, now)
            elif load.failed_blocks:
                self.link.failed(now)

    def take_counts(self) -> dict[str, float]:
        """What was counted since the last call, by name."""
        counts, self._counts = self._counts, {}
        return counts

    def figures(self) -> dict[str, float]:
        """What was measured, as of now."""
        return {
            "bandwidth_bytes_per_s": self.link.bytes_per_s,
            "t0_seconds": self.link.t0_s,
            "prefill_tokens_per_s": self.prefill.tokens_per_s,
        }

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    def _look_up(self, known: _Known) -> None:
        request = known.request
        # At least one token must be left to compute.
        whole = (request.num_tokens - 1) // self._block_tokens
        known.asked_at = self._now()
        known.patience_s = self._look_up_patience_s(whole * self._block_tokens)
        hashes = list(request.block_hashes[:whole])
        known.found = self._pool.submit(self._count_found, hashes, known.patience_s)

    def _is_found(self, known: _Known, found: "Future[int]") -> bool:
        if not found.done() and not known.had_its_moment and self._store.is_available:
            known.had_its_moment = True
            wait([found], _MOMENT_S)
        return found.done()

    def _look_up_patience_s(self, tokens: int) -> float:
        compute_s = self.prefill.predict(0, tokens) or 0.0
        return min(_LOOK_UP_MOST_S, max(_LOOK_UP_LEAST_S, _LOOK_UP_SHARE * compute_s))

    def _count_found(self, hashes: list[bytes], patience_s: float) -> int:
        """How many of the blocks, from the first on, Redis has of every rank."""
        if not hashes:
            return 0
        asked = [BlockId(rank, block_hash) for block_hash in hashes for rank in self._fingerprints]
        try:
            found = self._ask(asked, time.monotonic() + patience_s)
        except Exception:
            # Raised to the scheduler, it would end the engine.
            _log.exception("KV blocks are not looked up")
            return 0
        return found.index(False) // len(self._fingerprints) if False in found else len(hashes)

    def _ask(self, asked: Sequence[BlockId], until: float) -> list[bool]:
        """Which blocks are there; none where nobody says.

        Asked again while there is time, if Redis was well when it was asked at first: one that is away costs nobody that.
        """
        was_well = self._store.is_available
        while True:
            begun = time.monotonic()
            try:
                found = self._store.exist(asked, within_s=until - begun if was_well else 0.0)
            except BlocksUnavailable:
                if not was_well or time.monotonic() + _LOOK_UP_AGAIN_S > until:
                    return [False]
                time.sleep(_LOOK_UP_AGAIN_S)
            else:
                self.link.asked(time.monotonic() - begun)
                return found

    def _choose(self, known: _Known, computed_tokens: int, blocks: int) -> Choice:
        size_bytes, tokens = blocks * self._size_bytes, blocks * self._block_tokens
        choice = choose(self.link, self.prefill, computed_tokens, tokens, size_bytes, self._now())
        if known.choice is None:
            # Asked again while the request waits, it still is one choice.
            name = "restore" if choice.restores else "recompute"
            self._counts[name] = self._counts.get(name, 0) + 1
        known.choice = choice
        return choice

    def _save(self, known: _Known, computed_tokens: int, block_ids: Sequence[int]) -> None:
        """Plans to save the blocks that are full once so many tokens are computed, and that were not yet."""
        hashes, first = known.request.block_hashes, known.saved_blocks
        full = min(computed_tokens // self._block_tokens, len(hashes), len(block_ids))
        if full <= first:
            return
        saved = Transfer(
            known.request.request_id, tuple(hashes[first:full]), tuple(block_ids[first:full]), first
        )
        self._plan.saves.append(saved)
        known.saved_blocks, known.has_saves = full, True

    def _turn(self, request: EngineRequest) -> str:
        parameters = request.kv_transfer_params or {}
        turn = parameters.get(PARAMETER)
        return turn if self._settings.strategy == "sync" and isinstance(turn, str) else ""


def _recompute_s(choice: Choice | None) -> float:
    return MOST_PATIENCE_S if choice is None or choice.recompute_s is None else choice.recompute_s
