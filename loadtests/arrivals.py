"""When requests are due, whatever became of those before: the arrival processes of an open loop.

Each is an endless series of seconds since the load began, and can be dealt out to several processes: share `index` of
`count` has every count-th arrival, or an independent process of a count-th of the rate, which sums up to the same.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count as counting

Rate = Callable[[float], float]
SPIKE_BEGINS, SPIKE_ENDS = 0.4, 0.5
"""Which part of a period the spike takes."""
FORMS = {
    "constant": "RATE: evenly spaced, a second",
    "poisson": "RATE: independent, on average so many a second",
    "ramp": "FROM,TO: rises over one period, then stays",
    "spike": "BASE,TOP: a tenth of each period at the top",
    "diurnal": "LOW,HIGH: a sine, one day a period",
    "replay": "FILE[,SPEED]: a trace in Mooncake's JSONL or Azure's CSV",
}


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of all arrivals one process asks for."""

    index: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class Form:
    """An arrival process by name. Rates are per second, `period_s` is what one ramp, spike or day takes."""

    kind: str
    numbers: tuple[float, ...] = ()
    path: str = ""
    period_s: float = 60.0

    @property
    def is_replay(self) -> bool:
        return self.kind == "replay"

    @property
    def speed(self) -> float:
        """How many times faster than recorded a trace is replayed."""
        return self.numbers[0] if self.numbers else 1.0

    def rate(self, at_s: float) -> float:
        """Arrivals per second at a time."""
        first, last = self.numbers[0], self.numbers[-1]
        part = at_s / self.period_s
        if self.kind == "ramp":
            return first + (last - first) * min(part, 1.0)
        if self.kind == "spike":
            return last if SPIKE_BEGINS <= part % 1.0 < SPIKE_ENDS else first
        if self.kind == "diurnal":
            return first + (last - first) * (1.0 - math.cos(2.0 * math.pi * part)) / 2.0
        return first


def parse_form(text: str, period_s: float = 60.0) -> Form:
    """`poisson:20`, `spike:5,50`, `replay:trace.jsonl,2`; raises ValueError that says what is wrong."""
    kind, _, rest = text.partition(":")
    if kind not in FORMS:
        raise ValueError(f"no arrivals called {kind!r}; there are {', '.join(FORMS)}")
    if kind == "replay":
        path, _, speed = rest.partition(",")
        return Form(kind, (float(speed),) if speed else (), path, period_s)
    numbers = tuple(float(number) for number in rest.split(",") if number)
    wanted = 1 if kind in ("constant", "poisson") else 2
    if len(numbers) != wanted or min(numbers) < 0 or max(numbers) <= 0:
        raise ValueError(f"{kind} is {kind}:{FORMS[kind].partition(':')[0]}, with rates above zero")
    return Form(kind, numbers, period_s=period_s)


def arrivals(form: Form, seed: int, share: Share = Share()) -> Iterator[float]:
    """The times of one share, from the first on, without end. Not for a replay, which has its own times."""
    if form.kind == "constant":
        return (number / form.numbers[0] for number in counting(share.index, share.count))
    return _thinned(form.rate, max(form.numbers), random.Random(f"{seed}/{share.index}"), share.count)


def _thinned(rate: Rate, peak_per_s: float, rng: random.Random, divisor: int) -> Iterator[float]:
    """A Poisson process of changing rate, by thinning one of the highest rate (Lewis and Shedler, 1979)."""
    now = 0.0
    while True:
        now += rng.expovariate(peak_per_s / divisor)
        if rng.random() * peak_per_s < rate(now):
            yield now
