"""The simulated engine's prefix cache: the blocks of prompts it holds, least recently used out first."""

from collections import OrderedDict

from loadtests.tokens import state_after

BLOCK_TOKENS = 16


class PrefixCache:
    """Holds up to `blocks` blocks, each named by all that leads up to its end, like vLLM's block hashes."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def admit(self, prompt: list[int]) -> int:
        """How many of the prompt's first tokens need no prefill; all its whole blocks are held afterwards."""
        if not self._blocks:
            return 0
        cached = state = 0
        is_prefix = True
        for start in range(0, len(prompt) - BLOCK_TOKENS, BLOCK_TOKENS):
            state = state_after(prompt[start : start + BLOCK_TOKENS], state)
            is_prefix = is_prefix and state in self._held
            cached += BLOCK_TOKENS if is_prefix else 0
            self._held[state] = None
            self._held.move_to_end(state)
        while len(self._held) > self._blocks:
            self._held.popitem(last=False)
        return cached

    def clear(self) -> None:
        self._held.clear()

    def __len__(self) -> int:
        return len(self._held)
