"""What processes tell each other of prefixes: which replica was given which prompt, and what its engine really holds.

Text and tokens have a chain of hashes each, over blocks of their own. Gateways know both of a prompt that they routed
and tell how they belong together; supervisors know only tokens, from their engine's events.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson
import xxhash

TOKEN_BLOCK = 16
"""Tokens of one hash: it divides every engine's own block."""


def topic_of(model: str) -> str:
    """Where a model's news are told."""
    return f"prefixes:{model}"


def token_chain(ids: Sequence[int], before: int = 0) -> tuple[int, ...]:
    """One hash per whole block of tokens, each over all that comes before it.

    Args:
        before: the hash of what precedes these tokens.
    """
    chain = []
    for start in range(0, len(ids) - TOKEN_BLOCK + 1, TOKEN_BLOCK):
        block = array("Q", (before, *ids[start : start + TOKEN_BLOCK]))
        before = xxhash.xxh3_64_intdigest(block.tobytes())
        chain.append(before)
    return tuple(chain)


@dataclass(frozen=True, slots=True)
class Routed:
    """A replica was given prompts: the text blocks, and the last whole token block in each (0: unknown)."""

    teller: str
    replica: str
    texts: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """What a replica's engine stored and dropped, in tokens. `is_anew`: it held nothing before."""

    replica: str
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    is_anew: bool = False


News = Routed | Held


def to_bytes(news: News) -> bytes:
    """For a topic: a line that says whose it is, then the hashes."""
    if isinstance(news, Routed):
        head: list[object] = ["routed", news.replica, news.teller, len(news.texts)]
        return orjson.dumps(head) + b"\n" + packed((*news.texts, *news.tokens))
    head = ["held", news.replica, news.is_anew, len(news.added)]
    return orjson.dumps(head) + b"\n" + packed((*news.added, *news.removed))


def from_bytes(raw: bytes) -> News | None:
    """None for what is none of ours."""
    head, _, hashes = raw.partition(b"\n")
    try:
        kind, replica, more, count = orjson.loads(head)
        numbers = unpacked(hashes)
    except (ValueError, TypeError):
        return None
    first, second = tuple(numbers[:count]), tuple(numbers[count:])
    if kind == "routed" and len(first) == len(second):
        return Routed(str(more), str(replica), first, second)
    return Held(str(replica), first, second, bool(more)) if kind == "held" else None


def packed(hashes: Iterable[int]) -> bytes:
    return array("Q", hashes).tobytes()


def unpacked(raw: bytes) -> list[int]:
    """Raises ValueError for what is no row of hashes."""
    found = array("Q")
    found.frombytes(raw)
    return found.tolist()
