"""Stop strings across a seam: what ends an answer may begin before a break and end after it."""

from collections.abc import Sequence
from operator import itemgetter


class StopMatcher:
    """Finds the first stop string in a text that comes in pieces, as an engine does: text that may yet become one is held.

    As in vLLM, the one that is complete first counts; of those that end together, the first in the list.

    Args:
        stops: the stop strings, none empty.
        said: text before the first piece; it has been told and is only looked back at.
        include: whether the stop string itself is part of the answer.
    """

    def __init__(self, stops: Sequence[str], said: str = "", include: bool = False) -> None:
        self._stops, self._include = stops, include
        self._reach = max(len(s) for s in stops) - 1
        self._before = said[-self._reach :] if self._reach else ""
        self._held = ""
        self.hit: str | None = None

    def hold(self, text: str) -> None:
        """Text that has been generated but not told: it comes before the next piece."""
        self._held = text

    def feed(self, text: str) -> str:
        """The part of the text that is certain now. After a hit, nothing more is."""
        if self.hit is not None:
            return ""
        text = self._held + text
        window = self._before + text
        if (found := self._find(window)) is not None:
            end, self.hit = found
            kept = end if self._include else end - len(self.hit)
            return text[: max(kept - len(self._before), 0)]
        keep = min(self._maybe_begun(window), len(text))
        certain, self._held = text[: len(text) - keep], text[len(text) - keep :]
        self._before = (self._before + certain)[-self._reach :] if self._reach else ""
        return certain

    def _find(self, window: str) -> tuple[int, str] | None:
        """The first stop string and where it ends. One that lies wholly in what was told is no hit: `min_tokens` let it pass."""
        told = len(self._before)
        found = [
            (at + len(s), s) for s in self._stops if (at := window.find(s, max(0, told + 1 - len(s)))) >= 0
        ]
        return min(found, key=itemgetter(0), default=None)

    def _maybe_begun(self, window: str) -> int:
        """How many characters at the end could be the start of a stop string."""
        longest = min(self._reach, len(window))
        return next(
            (n for n in range(longest, 0, -1) if any(s.startswith(window[-n:]) for s in self._stops)), 0
        )

    def flush(self) -> str:
        """What is held, when the text has ended otherwise."""
        rest, self._held = self._held, ""
        return rest
