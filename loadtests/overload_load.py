"""Load that changes over time: phases of a rising, falling or steady rate, each with its own mix of priorities."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtests.client import Question

STANDARD_MIX: Mapping[str, float] = {"critical": 0.2, "standard": 0.8}


@dataclass(frozen=True, slots=True)
class Stream:
    """Open-loop Poisson arrivals whose rate goes straight from `from_k` to `to_k`, in multiples of the fleet's capacity."""

    begins_s: float
    ends_s: float
    from_k: float
    to_k: float
    mix: Mapping[str, float]

    def k(self, at_s: float) -> float:
        if not self.begins_s <= at_s < self.ends_s:
            return 0.0
        return self.from_k + (self.to_k - self.from_k) * (at_s - self.begins_s) / (
            self.ends_s - self.begins_s
        )

    def arrivals(self, capacity_per_s: float, rng: random.Random) -> list[tuple[float, str]]:
        """When requests are due, and with what priority: a Poisson process thinned to the rate (Lewis, Shedler)."""
        peak_per_s = max(self.from_k, self.to_k) * capacity_per_s
        found: list[tuple[float, str]] = []
        now = self.begins_s + rng.expovariate(peak_per_s)
        while now < self.ends_s:
            if rng.random() * peak_per_s < self.k(now) * capacity_per_s:
                found.append((now, rng.choices(list(self.mix), list(self.mix.values()))[0]))
            now += rng.expovariate(peak_per_s)
        return found


def steady(k: float, duration_s: float = 20.0, mix: Mapping[str, float] = STANDARD_MIX) -> Stream:
    """`k` times the capacity from the beginning on."""
    return Stream(0.0, duration_s, k, k, mix)


def in_sequence(
    *parts: tuple[float, float, float], mix: Mapping[str, float] = STANDARD_MIX
) -> tuple[Stream, ...]:
    """Phases one after the other, each as (duration in seconds, from k, to k)."""
    streams: list[Stream] = []
    begins_s = 0.0
    for duration_s, from_k, to_k in parts:
        streams.append(Stream(begins_s, begins_s + duration_s, from_k, to_k, mix))
        begins_s += duration_s
    return tuple(streams)


def questions(
    streams: Sequence[Stream], capacity_per_s: float, tokens: int, seed: int
) -> tuple[list[Question], list[float]]:
    """All requests of all streams in order of their time, and those times in seconds after the beginning."""
    rng = random.Random(seed)
    arrivals = sorted(due for stream in streams for due in stream.arrivals(capacity_per_s, rng))
    asked = [
        Question(
            ({"role": "user", "content": f"question {number} of run {seed}"},),
            tokens,
            headers={"x-priority": priority},
        )
        for number, (_, priority) in enumerate(arrivals)
    ]
    return asked, [due_s for due_s, _ in arrivals]
