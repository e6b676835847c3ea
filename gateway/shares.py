"""Which tiers answered lately: shares over a sliding minute, in buckets of a second."""

from collections import Counter, deque

WINDOW_S = 60


class TierShares:
    """Counts answers by tier. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._seconds: deque[tuple[int, Counter[str]]] = deque(maxlen=WINDOW_S)

    def add(self, tier: str, now: float) -> None:
        second = int(now)
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][tier] += 1

    def of(self, tier: str, now: float) -> float:
        """The share of the last minute's answers that the tier gave, 0 to 1."""
        recent = [counts for second, counts in self._seconds if second > now - WINDOW_S]
        total = sum(counts.total() for counts in recent)
        return sum(counts[tier] for counts in recent) / total if total else 0.0
