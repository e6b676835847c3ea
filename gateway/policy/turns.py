"""A conversation as turns, so that the oldest can be left out whole. Pure.

A turn is what one user message began: the answer to it, the tools that were called for it, and what they said. So a call
and its result are never parted, and what is left begins with a user message, as most chat templates demand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Message = dict[str, Any]
INSTRUCTIONS = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, with the places at which turns begin."""

    messages: Sequence[Message]
    begins: Sequence[int]

    @classmethod
    def of(cls, messages: Sequence[Message]) -> "Conversation":
        roles = [message.get("role") for message in messages]
        begins = [place for place, role in enumerate(roles) if role == "user"]
        before = roles[: begins[0]] if begins else []
        if any(role not in INSTRUCTIONS for role in before):
            # A greeting that nobody asked for is the oldest turn.
            begins.insert(0, 0)
        return cls(messages, begins)

    @property
    def removable(self) -> int:
        """Turns that may be left out: all but the last."""
        return max(0, len(self.begins) - 1)

    def sizes(self, size: Callable[[Message], int]) -> list[int]:
        """What is left without none, one, two … of the oldest turns, by the sizes of its messages."""
        each = [size(message) for message in self.messages]
        left = [sum(each)]
        for begin, end in pairwise(self.begins):
            went = sum(each[n] for n in range(begin, end) if self.messages[n].get("role") not in INSTRUCTIONS)
            left.append(left[-1] - went)
        return left

    def without(self, turns: int) -> list[Message]:
        """The messages without so many of the oldest turns. Instructions stay, wherever they stand."""
        if not turns:
            return list(self.messages)
        end = self.begins[turns]
        kept = [m for m in self.messages[:end] if m.get("role") in INSTRUCTIONS]
        return [*kept, *self.messages[end:]]
