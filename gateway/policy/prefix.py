"""The prefix chain: one hash per block of a prompt, each over all that comes before it, and who holds which.

The gateway does not tokenize; equal text gives equal tokens, so blocks of text stand for the engine's blocks of tokens.
What an engine tells of its tokens is brought home to the text blocks that were seen to end with them.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

import xxhash

BLOCK_BYTES = 512
"""About one 128-token block of English text."""
MAX_BLOCKS = 64
MAX_HOLDERS = 4
ENTRY_BYTES = 720
"""What one text block costs, holders and tokens included; a test measures it."""
DEFAULT_BUDGET_BYTES = 32 * 1024 * 1024


def prefix_chain(prompt: bytes) -> tuple[int, ...]:
    """The chained hashes of the whole blocks of a prompt, shortest prefix first; at most the first 32 KiB."""
    chain, state = [], xxhash.xxh3_64()
    for start in range(0, min(len(prompt) - BLOCK_BYTES + 1, MAX_BLOCKS * BLOCK_BYTES), BLOCK_BYTES):
        state.update(prompt[start : start + BLOCK_BYTES])
        chain.append(state.intdigest())
    return tuple(chain)


def tokens_of(chain: Sequence[int], tokens: Sequence[int], size_bytes: int) -> tuple[int, ...]:
    """The token block that each text block ends in, as its hash; 0 where there is none.

    Text and tokens are taken to advance alike, which errs by a block at most where the text is of one kind.

    Args:
        tokens: the chain of the prompt's tokens.
        size_bytes: of the whole prompt.
    """
    last = [min(len(tokens), (n + 1) * BLOCK_BYTES * len(tokens) // size_bytes) for n in range(len(chain))]
    return tuple(tokens[n - 1] if n else 0 for n in last)


class PrefixIndex:
    """Which replicas hold which prefix. Bounded in bytes: the least recently used blocks go first."""

    def __init__(self, budget_bytes: int = DEFAULT_BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._tokens: dict[int, int] = {}
        """The token block in which a text block ends."""
        self._texts: dict[int, tuple[int, ...]] = {}
        """The text blocks that end in a token block."""

    def __len__(self) -> int:
        return len(self._holders)

    @property
    def size_bytes(self) -> int:
        """About what it takes."""
        return len(self) * ENTRY_BYTES

    def add(self, replica: str, chain: Iterable[int]) -> None:
        """The replica has computed this prompt."""
        for block in chain:
            others = [r for r in self._holders.get(block, ()) if r != replica]
            self._holders[block] = (replica, *others[: MAX_HOLDERS - 1])
            self._holders.move_to_end(block)
        while len(self._holders) * ENTRY_BYTES > self.budget_bytes:
            self._unlink(self._holders.popitem(last=False)[0])

    def link(self, texts: Iterable[int], tokens: Iterable[int]) -> None:
        """These text blocks end in these token blocks."""
        for text, token in zip(texts, tokens, strict=True):
            if token and text in self._holders and self._tokens.get(text) != token:
                self._unlink(text)
                self._tokens[text] = token
                self._texts[token] = (*self._texts.get(token, ()), text)

    def stored(self, replica: str, tokens: Iterable[int]) -> None:
        """The replica's engine holds these token blocks."""
        for text in self._known(tokens):
            if replica not in self._holders[text]:
                self._holders[text] = (replica, *self._holders[text][: MAX_HOLDERS - 1])

    def removed(self, replica: str, tokens: Iterable[int]) -> None:
        """The replica's engine holds these token blocks no more."""
        for text in self._known(tokens):
            if replica in self._holders[text]:
                self._holders[text] = tuple(r for r in self._holders[text] if r != replica)

    def _known(self, tokens: Iterable[int]) -> Iterable[int]:
        return (text for token in tokens for text in self._texts.get(token, ()))

    def depth(self, replica: str, chain: Sequence[int]) -> int:
        """How many leading blocks of the prompt the replica holds."""
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
        """The replicas that hold the longest part of the prompt that anybody does."""
        return next((found for block in reversed(chain) if (found := self._holders.get(block))), ())

    def forget(self, replica: str) -> None:
        """The replica restarted: its cache is empty."""
        for block, holders in list(self._holders.items()):
            if replica in holders:
                self._holders[block] = tuple(r for r in holders if r != replica)

    def counts(self) -> dict[str, int]:
        """How many blocks each replica holds."""
        found: dict[str, int] = {}
        for holders in self._holders.values():
            for replica in holders:
                found[replica] = found.get(replica, 0) + 1
        return found

    def entries(self) -> Iterator[tuple[int, int, tuple[str, ...]]]:
        """Every text block of now with its token block and holders, least recently used first; made as it is read."""
        held = list(self._holders.items())
        return ((text, self._tokens.get(text, 0), holders) for text, holders in held)

    def restore(self, entries: Iterable[tuple[int, int, tuple[str, ...]]]) -> None:
        """Takes what another index had."""
        for text, token, holders in entries:
            for replica in reversed(holders):
                self.add(replica, (text,))
            if holders:
                self.link((text,), (token,))

    def _unlink(self, text: int) -> None:
        token = self._tokens.pop(text, 0)
        left = tuple(t for t in self._texts.get(token, ()) if t != text)
        if left:
            self._texts[token] = left
        else:
            self._texts.pop(token, None)
