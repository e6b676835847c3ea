"""JSON from bytes: each byte chooses, so that mutations stay JSON and reach what stands behind the parser."""

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

_NUMBERS = (0, 1, -1, 2, 16, 255, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), 0.0, 0.5, -0.0, 1e308, 5e-324)
_TEXTS = ("", "a", "\n", "\x00", "é", "😀", "\u2028", '"', "\\", "data: x\n\n", "[DONE]", "stop", "x" * 600)
_DEEPEST = 6


def fields(data: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    """An object with some of these fields, or of none of them, and values of any type."""
    choices: Iterator[int] = chain(data, repeat(0))
    count = min(len(data) // 2, 24)
    return {_name(choices, names): _value(choices, names, 0) for _ in range(count)}


def _name(choices: Iterator[int], names: tuple[str, ...]) -> str:
    chosen = next(choices)
    return names[chosen % len(names)] if chosen < 250 else f"x{chosen}"


def _value(choices: Iterator[int], names: tuple[str, ...], depth: int) -> Any:
    chosen = next(choices)
    kind, detail = chosen % 8, chosen // 8
    if kind < 3:
        return (None, True, False)[kind]
    if kind == 3:
        return _NUMBERS[detail % len(_NUMBERS)]
    if kind == 4:
        return _TEXTS[detail % len(_TEXTS)]
    if depth >= _DEEPEST:
        return _deep(detail)
    if kind == 5:
        return [_value(choices, names, depth + 1) for _ in range(detail % 4)]
    if kind == 6:
        return {_name(choices, names): _value(choices, names, depth + 1) for _ in range(detail % 5)}
    return _deep(detail * 16) if detail > 24 else next(choices)


def _deep(levels: int) -> Any:
    nested: Any = []
    for _ in range(levels):
        nested = [nested]
    return nested
