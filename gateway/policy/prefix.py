"""The prefix chain: one hash per block of a prompt, each over all that comes before it, and who has seen which.

The gateway does not tokenize; equal text gives equal tokens, so blocks of text stand for the engine's blocks of tokens.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import xxhash

BLOCK_BYTES = 512
"""About one 128-token block of English text."""
MAX_BLOCKS = 64
MAX_HOLDERS = 4


def prefix_chain(prompt: bytes) -> tuple[int, ...]:
    """The chained hashes of the whole blocks of a prompt, shortest prefix first; at most the first 32 KiB."""
    chain, state = [], xxhash.xxh3_64()
    for start in range(0, min(len(prompt) - BLOCK_BYTES + 1, MAX_BLOCKS * BLOCK_BYTES), BLOCK_BYTES):
        state.update(prompt[start : start + BLOCK_BYTES])
        chain.append(state.intdigest())
    return tuple(chain)


class PrefixIndex:
    """Which replicas were given which prefix. Bounded: the least recently used blocks go first."""

    def __init__(self, max_blocks: int = 100_000) -> None:
        self._max_blocks = max_blocks
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, replica: str, chain: Iterable[int]) -> None:
        """The replica has computed this prompt."""
        for block in chain:
            others = [r for r in self._holders.get(block, ()) if r != replica]
            self._holders[block] = (replica, *others[: MAX_HOLDERS - 1])
            self._holders.move_to_end(block)
        while len(self._holders) > self._max_blocks:
            self._holders.popitem(last=False)

    def depth(self, replica: str, chain: Sequence[int]) -> int:
        """How many leading blocks of the prompt the replica has seen."""
        low, high = 0, len(chain)
        while low < high:
            middle = (low + high + 1) // 2
            if replica in self._holders.get(chain[middle - 1], ()):
                low = middle
            else:
                high = middle - 1
        return low

    def known(self, chain: Sequence[int]) -> int:
        """How many leading blocks of the prompt any replica has seen."""
        low, high = 0, len(chain)
        while low < high:
            middle = (low + high + 1) // 2
            if chain[middle - 1] in self._holders:
                low = middle
            else:
                high = middle - 1
        return low

    def holders(self, chain: Sequence[int]) -> tuple[str, ...]:
        """The replicas that have seen the longest known part of the prompt."""
        return next((self._holders[block] for block in reversed(chain) if block in self._holders), ())

    def forget(self, replica: str) -> None:
        """The replica restarted: its cache is empty."""
        for block, holders in list(self._holders.items()):
            if replica in holders:
                self._holders[block] = tuple(r for r in holders if r != replica)
