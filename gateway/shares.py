"""What became of requests lately: which tiers answered, for what reason a lower one did, and who was refused.

Counted twice: by the second for a minute, by the minute for an hour.
"""

from collections import Counter, deque
from typing import Literal

WINDOW_S = 60
MINUTES = 60

Kind = Literal["tier", "reason", "shed", "stream", "given_up", "feature"]
"""An answer by its tier; a lower tier's answer by its reason; a refusal by its reason; a broken stream by its end; an
answer to less than was asked, by what was left out; a context feature by its name and source."""
Counts = Counter[tuple[Kind, str]]


class Buckets:
    """Counts in buckets of `width_s`; the last `keep` of them that have any."""

    def __init__(self, width_s: int, keep: int) -> None:
        self._width_s = width_s
        self._buckets: deque[tuple[int, Counts]] = deque(maxlen=keep)

        self._newest: Counts = Counter()
        self._ends_at = float("-inf")

    def add(self, key: tuple[Kind, str], now: float) -> None:
        """One more. `now` does not go back."""
        if now >= self._ends_at:
            bucket = int(now / self._width_s)
            self._newest, self._ends_at = Counter(), (bucket + 1.0) * self._width_s
            self._buckets.append((bucket, self._newest))
        self._newest[key] += 1

    def total(self, count: int, now: float) -> Counts:
        """The sum of the last `count` buckets; the one that `now` is in is the last."""
        oldest = now / self._width_s - count
        total: Counts = Counter()
        for bucket, counts in self._buckets:
            if bucket > oldest:
                total.update(counts)
        return total

    def series(self, count: int, now: float) -> list[Counts]:
        """The last `count` buckets, oldest first, quiet ones too."""
        found = dict(self._buckets)
        last = int(now / self._width_s)
        return [found.get(bucket, Counter()) for bucket in range(last - count + 1, last + 1)]


class TierShares:
    """Counts one model's answers and refusals. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._seconds = Buckets(1, WINDOW_S)
        self._minutes = Buckets(60, MINUTES)
        self.totals: Counts = Counter()
        """Since the start."""

    def add(self, tier: str, now: float) -> None:
        """An answer of this tier."""
        self._count("tier", tier, now)

    def degraded(self, reason: str, now: float) -> None:
        """An answer of a lower tier, for this reason."""
        self._count("reason", reason, now)

    def shed(self, reason: str, now: float) -> None:
        """A refusal."""
        self._count("shed", reason, now)

    def stream(self, end: str, now: float) -> None:
        """A stream that broke, and `resumed` or was `given_up`."""
        self._count("stream", end, now)

    def given_up(self, what: str, now: float) -> None:
        """An answer to a request of which this was left out."""
        self._count("given_up", what, now)

    def feature(self, name: str, source: str, now: float) -> None:
        """A context feature of a request, and where its text came from."""
        self._count("feature", f"{name}/{source}", now)

    def _count(self, kind: Kind, name: str, now: float) -> None:
        key = kind, name
        self.totals[key] += 1
        self._seconds.add(key, now)
        self._minutes.add(key, now)

    def of(self, tier: str, now: float) -> float:
        """The share of the last minute's answers that the tier gave, 0 to 1."""
        answers = of_kind(self.last(WINDOW_S, now), "tier")
        total = sum(answers.values())
        return answers.get(tier, 0) / total if total else 0.0

    def last(self, seconds: int, now: float) -> Counts:
        """The last seconds, a minute at most."""
        return self._seconds.total(seconds, now)

    def hour(self, now: float) -> list[Counts]:
        """The last hour by the minute, oldest first."""
        return self._minutes.series(MINUTES, now)


def of_kind(counts: Counts, kind: Kind) -> dict[str, int]:
    """One kind's counts by name."""
    return {name: count for (k, name), count in counts.items() if k == kind}
