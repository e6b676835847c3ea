"""What others run on a replica: other gateways, and clients that ask it directly.

The engine says how much it has; what of that is not from here is counted off the places that are given from here. Only what
two readings in a row say counts: between them requests come and go. Where a replica is full, who has more on it than all
others together leaves one place free now and then; if somebody takes it, the next one follows, and so several gateways come
to have about the same.
"""

from dataclasses import dataclass, replace

YIELD_AGAIN_S = 10.0
"""Nobody took the place that was left: so long nothing is left again."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One replica's load from elsewhere, as of its last readings. Times are monotonic seconds."""

    sequences: int = 0
    """What counts."""
    left: int = 0
    """Places left free for others."""
    last: int = 0
    """What the last reading alone said."""
    not_before: float = 0.0

    @property
    def places(self) -> int:
        """That are not given from here."""
        return self.sequences + self.left


def heard(before: Elsewhere, told: int, mine: int, slots: int, now: float) -> Elsewhere:
    """After a reading.

    Args:
        told: sequences that the engine runs and has waiting.
        mine: of those at most so many are from here.
        slots: that it decodes at once.
    """
    last = max(0, told - mine)
    sequences = min(last, before.last)
    after = replace(before, sequences=sequences, last=last, left=0)
    is_contended = sequences > 0 and mine + sequences + before.left >= slots
    if not is_contended or mine <= sequences + 1 or now < before.not_before:
        return after
    if before.left and mine + last < slots:
        return replace(after, not_before=now + YIELD_AGAIN_S)
    return replace(after, left=1)
