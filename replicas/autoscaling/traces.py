"""Arrival rates over time, and requests drawn from them."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import exp, log, pi, sin
from types import MappingProxyType

Rate = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests a second as a function of the time in seconds."""

    name: str
    length_s: float
    rate: Rate
    peak: float
    """Never exceeded by `rate`."""
    burstiness: float = 1.0
    """Variance of the gaps between arrivals against a Poisson process of the same rate."""


def _step(now: float) -> float:
    return 8.0 if 300 <= now < 1200 else 2.0


def _ramp(now: float) -> float:
    if now < 300:
        return 2.0
    if now < 1500:
        return 2.0 + 10.0 * (now - 300) / 1200
    return max(2.0, 12.0 - 10.0 * (now - 1500) / 600)


def _diurnal(now: float) -> float:
    """One day in two hours."""
    return 6.5 - 5.0 * sin(2 * pi * now / 7200 + pi / 2)


def _spike(now: float) -> float:
    return 15.0 if 600 <= now < 720 or 1800 <= now < 1890 else 3.0


def _flapping(now: float) -> float:
    return 3.0 if now % 120 < 60 else 9.0


def _bursty(rng: random.Random, length_s: float) -> Rate:
    """Levels that last a minute or two and are lognormal, as public traces of language-model services show."""
    levels: list[tuple[float, float]] = []
    at = 0.0
    while at < length_s:
        levels.append((at, min(14.0, exp(rng.gauss(log(4.0), 0.6)))))
        at += rng.expovariate(1 / 90) + 20

    def rate(now: float) -> float:
        return next(level for start, level in reversed(levels) if start <= now)

    return rate


_FIXED: Mapping[str, Trace] = MappingProxyType(
    {
        "step": Trace("step", 2400, _step, 8.0),
        "ramp": Trace("ramp", 2700, _ramp, 12.0),
        "diurnal": Trace("diurnal", 7200, _diurnal, 11.5),
        "spike": Trace("spike", 2700, _spike, 15.0),
        "flapping": Trace("flapping", 2400, _flapping, 9.0),
    }
)
TRACES = (*_FIXED, "bursty")


def trace(name: str, seed: int) -> Trace:
    """The trace of that name; of the bursty one, each seed has its own levels."""
    if name == "bursty":
        return Trace(name, 3600, _bursty(random.Random(seed), 3600), 14.0, burstiness=4.0)
    return _FIXED[name]


def arrivals(chosen: Trace, rng: random.Random, mean_service_s: float) -> Iterator[tuple[float, float]]:
    """(time, seconds a slot is held) of each request, in order of time.

    A Poisson process thinned to the rate; where it is bursty, each point brings a few requests close together, their
    number geometric. Service is lognormal: most answers are short and a few are long.
    """
    sigma = 0.6
    mu = log(mean_service_s) - sigma * sigma / 2
    mean_batch = (chosen.burstiness + 1) / 2
    now = 0.0
    while True:
        now += rng.expovariate(chosen.peak / mean_batch)
        if now >= chosen.length_s:
            return
        if rng.random() * chosen.peak >= chosen.rate(now):
            continue
        batch = 1
        while rng.random() < 1 - 1 / mean_batch:
            batch += 1
        for _ in range(batch):
            yield now, rng.lognormvariate(mu, sigma)
