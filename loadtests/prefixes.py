"""The simulated engine's prefix cache: the blocks of prompts it holds, least recently used out first."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from loadtests.tokens import state_after

if TYPE_CHECKING:
    from loadtests.kv_publisher import KvPublisher

BLOCK_TOKENS = 16


class PrefixCache:
    """Holds up to `blocks` blocks, each named by all that leads up to its end, like vLLM's block hashes."""

    def __init__(self, blocks: int, publisher: "KvPublisher | None" = None) -> None:
        self._blocks, self._publisher = blocks, publisher
        self._held: OrderedDict[int, None] = OrderedDict()

    def admit(self, prompt: list[int]) -> int:
        """How many of the prompt's first tokens need no prefill; all its whole blocks are held afterwards."""
        if not self._blocks:
            return 0
        cached = state = 0
        is_prefix = True
        for start in range(0, len(prompt) - BLOCK_TOKENS, BLOCK_TOKENS):
            before, ids = state, prompt[start : start + BLOCK_TOKENS]
            state = state_after(ids, state)
            is_prefix = is_prefix and state in self._held
            cached += BLOCK_TOKENS if is_prefix else 0
            if self._publisher is not None and state not in self._held:
                self._publisher.stored([state], before if start else None, ids, BLOCK_TOKENS)
            self._held[state] = None
            self._held.move_to_end(state)
        self._evict()
        return cached

    def _evict(self) -> None:
        gone = [self._held.popitem(last=False)[0] for _ in range(len(self._held) - self._blocks)]
        if gone and self._publisher is not None:
            self._publisher.removed(gone)

    def clear(self) -> None:
        self._held.clear()
        if self._publisher is not None:
            self._publisher.cleared()

    def __len__(self) -> int:
        return len(self._held)
