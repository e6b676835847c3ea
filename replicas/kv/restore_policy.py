"""Restore or recompute: arithmetic over what was measured here, on this replica, with this Redis. No clock of its own.

    restore = t0 + bytes / bandwidth        recompute = seconds that prefill took at this length

Nothing is taken over from another machine: as long as nothing was measured, restoring is tried, which measures it.
"""

import math
from dataclasses import dataclass, field

_WEIGHT = 0.3
"""Of a new sample in a moving average."""
STALE_S = 60.0
"""With each such time that passes without a load, the link is taken to be twice as fast: so it is tried again, the later
the worse it was."""


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
    s_per_byte: float = 0.0
    """Averaged as it is and not as a rate, so that slow loads weigh more than fast ones. 0: not measured yet."""
    as_of: float = -math.inf

    @property
    def bytes_per_s(self) -> float:
        """0 when no load was measured."""
        return 1.0 / self.s_per_byte if self.s_per_byte else 0.0

    def asked(self, seconds: float) -> None:
        """A question without data took `seconds`: the least that any load takes."""
        self.t0_s = seconds if not self.t0_s else self.t0_s + _WEIGHT * (seconds - self.t0_s)

    def loaded(self, size_bytes: int, seconds: float, now: float) -> None:
        """A load of `size_bytes` took `seconds`, waiting included."""
        sample = max(seconds - self.t0_s, 1e-6) / size_bytes
        is_believed = self.s_per_byte and now - self.as_of < STALE_S
        self.s_per_byte += _WEIGHT * (sample - self.s_per_byte) if is_believed else sample - self.s_per_byte
        self.as_of = now

    def failed(self, now: float) -> None:
        """A load brought nothing in time."""
        self.s_per_byte, self.as_of = 2 * self.s_per_byte, now

    def predict(self, size_bytes: int, now: float) -> float | None:
        """Seconds that a load of so much takes; None when none was measured."""
        if not self.s_per_byte:
            return None
        doublings = min(32, int((now - self.as_of) // STALE_S))
        return self.t0_s + size_bytes * self.s_per_byte / 2.0**doublings


def choose(link: Link, prefill: Prefill, first: int, tokens: int, size_bytes: int, now: float) -> Choice:
    """Whether `tokens` tokens after the first `first`, `size_bytes` in Redis, are loaded rather than computed."""
    restore_s, recompute_s = link.predict(size_bytes, now), prefill.predict(first, tokens)
    if restore_s is None:
        return Choice(True, "no load measured yet", restore_s, recompute_s)
    if recompute_s is None:
        return Choice(True, "no prefill measured yet", restore_s, recompute_s)
    if restore_s <= recompute_s:
        return Choice(True, "restoring is faster", restore_s, recompute_s)
    return Choice(False, "computing is faster", restore_s, recompute_s)


def _bucket(tokens: int) -> int:
    return max(tokens, 1).bit_length() - 1
