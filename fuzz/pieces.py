"""How one input becomes several: the pieces in which a network might deliver it, and choices made from its first bytes."""

from collections.abc import Iterator


def cut(data: bytes, seed: int) -> Iterator[bytes]:
    """The data in pieces of 1 to 16 bytes, or in two; the same for the same seed."""
    if seed % 3 == 0:
        at = seed % (len(data) + 1)
        yield from (part for part in (data[:at], data[at:]) if part)
        return
    at = 0
    while at < len(data):
        seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
        size = 1 + (seed >> 16) % 16
        yield data[at : at + size]
        at += size


def seeded(data: bytes) -> tuple[int, bytes]:
    """A number from the first two bytes, and the rest."""
    return int.from_bytes(data[:2], "little"), data[2:]
