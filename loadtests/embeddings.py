"""Embeddings of the simulated engine: the same for the same text, near for texts that share words and letters."""

import math
from functools import lru_cache
from random import Random
from zlib import crc32

DIMENSIONS = 128
TRIGRAM_WEIGHT = 0.25


def embedding(text: str) -> list[float]:
    """A vector of length 1: the sum of a random direction for each word and, weaker, for each three letters."""
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    parts = [(word, 1.0) for word in words]
    parts += [(f"{w}"[i : i + 3], TRIGRAM_WEIGHT) for w in words for i in range(len(w) - 2)]
    total = [0.0] * DIMENSIONS
    for part, weight in parts or [("", 1.0)]:
        for i, x in enumerate(_direction(part)):
            total[i] += weight * x
    length = math.hypot(*total) or 1.0
    return [x / length for x in total]


@lru_cache(maxsize=8192)
def _direction(part: str) -> tuple[float, ...]:
    rng = Random(crc32(part.encode("utf-8", "surrogatepass")))
    return tuple(rng.gauss(0.0, 1.0) for _ in range(DIMENSIONS))
