"""Outcomes over a sliding window: how many calls, what share failed, what share was slow."""

from collections import deque


class OutcomeWindow:
    """Counts of the last `window_s` seconds, kept as (time, failed, slow)."""

    __slots__ = ("_calls", "_failed", "_slow", "window_s")

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._calls: deque[tuple[float, bool, bool]] = deque()
        self._failed = 0
        self._slow = 0

    def add(self, now: float, failed: bool, slow: bool) -> None:
        self._calls.append((now, failed, slow))
        self._failed += failed
        self._slow += slow
        self._forget(now)

    def _forget(self, now: float) -> None:
        while self._calls and self._calls[0][0] < now - self.window_s:
            _, failed, slow = self._calls.popleft()
            self._failed -= failed
            self._slow -= slow

    def is_ill(self, now: float, min_count: int, failure_share: float, slow_share: float) -> bool:
        """Whether there are enough calls, and too many of them failed or were slow."""
        self._forget(now)
        count = len(self._calls)
        if count < min_count:
            return False
        return self._failed >= failure_share * count or self._slow >= slow_share * count

    def is_proof(self, now: float, min_count: int) -> bool:
        """Whether there are enough calls to contradict what somebody else says: at least so many, none failed or slow."""
        self._forget(now)
        return len(self._calls) >= min_count and not self._failed and not self._slow

    def clear(self) -> None:
        self._calls.clear()
        self._failed = self._slow = 0
