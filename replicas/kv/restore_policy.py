"""Restore or recompute: arithmetic over what was measured here, on this replica, with this Redis. No clock of its own.

    restore = t0 + bytes / bandwidth        recompute = seconds that prefill took at this length

Nothing is taken over from another machine: as long as nothing was measured, restoring is tried, which measures it.
"""

import math
from dataclasses import dataclass, field

_WEIGHT = 0.3
"""Of a new sample in a moving average."""
STALE_S = 60.0
"""A bandwidth that was measured longer ago is not believed: the next load measures it again."""
_TRIAL = 4.0
"""How much slower than prefill a stale figure may say that restoring is, for it still to be tried."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What is done, and what both would take; None where nothing was measured."""

    restores: bool
    reason: str
    restore_s: float | None = None
    recompute_s: float | None = None


@dataclass(slots=True)
class Prefill:
    """Seconds that prefill takes per token, by how far into the context: attention makes later tokens dearer."""

    _rates: dict[int, float] = field(default_factory=dict)

    def learn(self, first: int, tokens: int, seconds: float) -> None:
        """One step took `seconds` to prefill `tokens` tokens after the first `first`."""
        bucket, rate = _bucket(first + tokens // 2), seconds / tokens
        known = self._rates.get(bucket)
        self._rates[bucket] = rate if known is None else known + _WEIGHT * (rate - known)

    def predict(self, first: int, tokens: int) -> float | None:
        """Seconds for the same; None when nothing was measured."""
        if not self._rates:
            return None
        # By halves of buckets, as the rate changes on the way.
        total, at, end = 0.0, first, first + tokens
        while at < end:
            until = min(end, max(at + 1, 1 << _bucket(at) + 1))
            total += self._rate(_bucket(at)) * (until - at)
            at = until
        return total

    @property
    def tokens_per_s(self) -> float:
        """Where most was measured last; 0 when nothing was."""
        return 1.0 / self._rates[max(self._rates)] if self._rates else 0.0

    def _rate(self, bucket: int) -> float:
        return self._rates[min(self._rates, key=lambda known: (abs(known - bucket), -known))]


@dataclass(slots=True)
class Link:
    """What moving blocks from Redis into the cache takes."""

    t0_s: float = 0.0
    bytes_per_s: float = 0.0
    as_of: float = -math.inf

    def asked(self, seconds: float) -> None:
        """A question without data took `seconds`: the least that any load takes."""
        self.t0_s = seconds if not self.t0_s else self.t0_s + _WEIGHT * (seconds - self.t0_s)

    def loaded(self, size_bytes: int, seconds: float, now: float) -> None:
        """A load of `size_bytes` took `seconds`, waiting included."""
        rate = size_bytes / max(seconds - self.t0_s, 1e-6)
        believed = self.bytes_per_s and now - self.as_of < STALE_S
        self.bytes_per_s = self.bytes_per_s + _WEIGHT * (rate - self.bytes_per_s) if believed else rate
        self.as_of = now

    def failed(self, now: float) -> None:
        """A load brought nothing in time: as slow as it can be, until it is stale."""
        self.bytes_per_s, self.as_of = self.bytes_per_s / 2, now

    def predict(self, size_bytes: int) -> float | None:
        """Seconds that a load of so much takes; None when none was measured."""
        return self.t0_s + size_bytes / self.bytes_per_s if self.bytes_per_s else None


def choose(link: Link, prefill: Prefill, first: int, tokens: int, size_bytes: int, now: float) -> Choice:
    """Whether `tokens` tokens after the first `first`, `size_bytes` in Redis, are loaded rather than computed."""
    restore_s, recompute_s = link.predict(size_bytes), prefill.predict(first, tokens)
    if restore_s is None:
        return Choice(True, "no load measured yet", restore_s, recompute_s)
    if recompute_s is None:
        return Choice(True, "no prefill measured yet", restore_s, recompute_s)
    if restore_s <= recompute_s:
        return Choice(True, "restoring is faster", restore_s, recompute_s)
    if now - link.as_of > STALE_S and restore_s < _TRIAL * recompute_s:
        return Choice(True, "the bandwidth was measured too long ago", restore_s, recompute_s)
    return Choice(False, "computing is faster", restore_s, recompute_s)


def _bucket(tokens: int) -> int:
    return max(tokens, 1).bit_length() - 1
