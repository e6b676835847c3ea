"""How long the first token of a prompt takes, by the prompt's length: a line through what was measured, which fades.

Only bytes that no replica is known to hold count. As long as lengths hardly differ nothing is said about others: a prompt
much longer than any before is tried, and then known.
"""

FADE = 0.02
"""The least weight of the newest sample."""
LEAST_SAMPLES = 5
CERTAIN_BYTES = 256.0
"""Lengths that differ by less say little about what length costs."""
BELIEVED_S = 10.0
"""After so long without a sample nothing is known any more: what was slow may be well again, and is tried."""
LIKELY = 1.5
"""Mean deviations above the mean: nine in ten are sooner."""


class PrefillSpeed:
    """Learns from first tokens. Lengths in bytes, times in seconds."""

    __slots__ = ("_count", "_covariance", "_deviation_s", "_mean_bytes", "_variance", "as_of", "mean_s")

    def __init__(self) -> None:
        self._count = 0
        self._mean_bytes = self.mean_s = self._variance = self._covariance = self._deviation_s = 0.0
        self.as_of = 0.0

    def add(self, size_bytes: int, ttft_s: float, now: float) -> None:
        """A prompt of which `size_bytes` had to be computed had its first token after `ttft_s`."""
        self._count += 1
        self.as_of = now
        weight = max(FADE, 1.0 / self._count)
        off_s = abs(ttft_s - self._line(size_bytes)) if self._count > 1 else 0.0
        self._deviation_s += weight * (off_s - self._deviation_s)
        longer, later = size_bytes - self._mean_bytes, ttft_s - self.mean_s
        self._mean_bytes += weight * longer
        self.mean_s += weight * later
        self._variance = (1.0 - weight) * (self._variance + weight * longer * longer)
        self._covariance = (1.0 - weight) * (self._covariance + weight * longer * later)

    def expected_s(self, size_bytes: int, now: float) -> float | None:
        """How long such a prompt takes on average; None when that is not known."""
        if self._count < LEAST_SAMPLES or now - self.as_of > BELIEVED_S:
            return None
        return self._line(size_bytes)

    @property
    def allowance_s(self) -> float:
        """How much longer than on average most prompts take at most."""
        return LIKELY * self._deviation_s

    def more_s(self, size_bytes: int) -> float:
        """How much longer it takes than prompts usually do, for its length alone."""
        return max(0.0, self._line(size_bytes) - self.mean_s)

    def _line(self, size_bytes: int) -> float:
        slope = max(0.0, self._covariance / (self._variance + CERTAIN_BYTES * CERTAIN_BYTES))
        return max(0.0, self.mean_s + slope * (size_bytes - self._mean_bytes))
