"""What a tier's requests met in the last seconds: the raw material of the ladder's signals. Times are monotonic seconds."""

from collections import deque
from collections.abc import Iterable

WINDOW_S = 10.0
KEPT = 1024
"""Samples of each kind: at higher rates the window is shorter, and no less telling."""
LEAST = 20
"""Fewer say nothing about a p99 or a rate."""


class Recent:
    """First tokens, waits and ends of attempts, each with its time."""

    def __init__(self) -> None:
        self._ttfts: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._waits: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._ends: deque[tuple[float, bool, str]] = deque(maxlen=KEPT)

    def first_token(self, after_s: float, now: float) -> None:
        """A first token came, so long after the request's arrival."""
        self._ttfts.append((now, after_s))

    def waited(self, for_s: float, now: float) -> None:
        """A request left the queue."""
        self._waits.append((now, for_s))

    def ended(self, replica: str, is_failure: bool, now: float) -> None:
        """An attempt ended that says something about its replica."""
        self._ends.append((now, is_failure, replica))

    def forget(self, replicas: Iterable[str]) -> None:
        """These are out of rotation: how they failed is no news, and says nothing about the tier without them."""
        gone = set(replicas)
        if gone and self._ends:
            self._ends = deque((end for end in self._ends if end[2] not in gone), maxlen=KEPT)

    def ttft_p99_s(self, now: float) -> float | None:
        return _p99(value for at, value in self._ttfts if at > now - WINDOW_S)

    def wait_p99_s(self, now: float) -> float | None:
        return _p99(value for at, value in self._waits if at > now - WINDOW_S)

    def failure_share(self, now: float) -> float | None:
        ends = [failed for at, failed, _ in self._ends if at > now - WINDOW_S]
        return sum(ends) / len(ends) if len(ends) >= LEAST else None


def _p99(values: Iterable[float]) -> float | None:
    in_order = sorted(values)
    return in_order[int(0.99 * (len(in_order) - 1))] if len(in_order) >= LEAST else None
