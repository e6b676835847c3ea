"""Prompts of a wanted length, with prefixes that several share.

Lengths are in words, which are tokens of the simulated engine's language; a real tokenizer makes two to three of one.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from loadtests.tokens import FIRST_WORD, VOCABULARY, Message
from loadtests.traces import BLOCK_TOKENS, Recorded


@lru_cache(maxsize=4096)
def words(name: str, count: int) -> str:
    """`count` words that depend on `name` alone."""
    rng = random.Random(name)
    return b"".join(rng.choices(VOCABULARY[FIRST_WORD:], k=count)).decode()


@dataclass(frozen=True, slots=True)
class Prompts:
    """A pool of `prefixes` system prompts of `prefix_tokens`; the first is the most popular (Zipf)."""

    prefixes: int = 8
    prefix_tokens: int = 0
    prompt_tokens: int = 32
    seed: int = 1

    def opening(self, rng: random.Random) -> tuple[Message, ...]:
        """What a conversation begins with."""
        if not self.prefix_tokens:
            return ()
        ranks = range(1, self.prefixes + 1)
        chosen = rng.choices(ranks, [1 / rank for rank in ranks])[0]
        text = words(f"prefix {chosen} of {self.seed}", self.prefix_tokens)
        return ({"role": "system", "content": text},)

    def question(self, name: str) -> Message:
        """A user's turn that nobody else has."""
        length = max(self.prompt_tokens - 2, 1)
        return {"role": "user", "content": name + words(f"{name} of {self.seed}", length)}


def recorded_prompt(recorded: Recorded, number: int) -> Sequence[Message]:
    """A prompt of a trace: one text a named block, and words of its own where the trace names none."""
    whole = recorded.blocks[: recorded.prompt_tokens // BLOCK_TOKENS]
    texts = [words(f"block {block}", BLOCK_TOKENS) for block in whole]
    rest = max(recorded.prompt_tokens - BLOCK_TOKENS * len(whole), 1)
    return ({"role": "user", "content": "".join([*texts, words(f"request {number}", rest)])},)
