"""Limits: samples in, a number out; and both against an engine whose slots nobody told them."""

import heapq
from collections.abc import Callable
from random import Random

import pytest

from gateway.policy.limit import INITIAL, LEAST, AimdLimit, GradientLimit, Limit, Sample, limit_of

SLO_S = 1.0
Make = Callable[[float, int], Limit]


def sample(
    ttft_s: float = 0.05, in_flight: int = 10, began_at: float = 100.0, *, dropped: bool = False
) -> Sample:
    return Sample(began_at, began_at + ttft_s, ttft_s, in_flight, dropped)


@pytest.mark.parametrize(
    ("samples", "limit"),
    [
        ([sample()], 11),
        # too few in flight to tell
        ([sample(in_flight=4)], 10),
        # late, or pushed back: a tenth less than there was
        ([sample(), sample(0.3, began_at=101)], 9),
        ([sample(dropped=True)], 9),
        ([sample(in_flight=5, dropped=True)], 4),
        # what began before the last change tells of the limit before
        ([sample(), sample(began_at=100.01)], 11),
        ([sample(), sample(0.9, began_at=100.01)], 11),
        ([sample(), sample(began_at=101)], 12),
        # where the quickest takes that long, it is no queue
        ([sample(0.4), sample(0.5, began_at=101), sample(0.7, began_at=102)], 13),
        ([sample(0.4), sample(0.5, began_at=101), sample(0.9, began_at=102)], 9),
        ([sample(dropped=True, began_at=100.0 + n) for n in range(40)], LEAST),
    ],
)  # fmt: skip
def test_aimd(samples: list[Sample], limit: int) -> None:
    found = AimdLimit(SLO_S, 10)
    assert [found.update(s) for s in samples][-1] == limit


@pytest.mark.parametrize(
    ("samples", "limit"),
    [
        # room for the square root of it, a fifth at a time
        ([sample(in_flight=16)], 16),
        ([sample(in_flight=16, began_at=100.0 + n) for n in range(10)], 25),
        ([sample(in_flight=4)], 16),
        ([sample(in_flight=16, dropped=True)], 14),
        # later than it was: down, but not below half at once
        ([*[sample(in_flight=16, began_at=100.0 + n) for n in range(10)],
          *[sample(2.0, 20, began_at=200.0 + 3 * n) for n in range(10)]], 14),
        ([sample(dropped=True, began_at=100.0 + n) for n in range(40)], LEAST),
    ],
)  # fmt: skip
def test_gradient(samples: list[Sample], limit: int) -> None:
    found = GradientLimit(SLO_S, 16)
    assert [found.update(s) for s in samples][-1] == pytest.approx(limit, abs=1)


def settled(
    limit: Limit, slots: int, service_s: float, per_s: float, lasts_s: float = 120.0
) -> tuple[int, int]:
    """The least and the most of the limit in the second half, in front of an engine that queues beyond its slots."""
    rng, now, value, in_flight = Random(1), 0.0, INITIAL, 0
    free_at, events, seen = [0.0] * slots, list[tuple[float, int, str, float, int]](), list[int]()
    arrival = rng.expovariate(per_s)
    while now < lasts_s:
        if events and events[0][0] < arrival:
            now, _, kind, began_at, then = heapq.heappop(events)
            if kind == "token":
                value = limit.update(Sample(began_at, now, now - began_at, then))
                seen.append(value)
            else:
                in_flight -= 1
            continue
        now, arrival = arrival, arrival + rng.expovariate(per_s)
        if in_flight >= value:
            continue
        in_flight += 1
        start, takes_s = max(now, heapq.heappop(free_at)), service_s * (0.5 + rng.random())
        heapq.heappush(free_at, start + takes_s)
        heapq.heappush(events, (start + 0.02, len(seen), "token", now, in_flight))
        heapq.heappush(events, (start + takes_s, len(seen), "end", now, in_flight))
    half = seen[len(seen) // 2 :]
    return min(half), max(half)


@pytest.mark.parametrize(("make", "low", "high"), [(AimdLimit, 0.9, 1.5), (GradientLimit, 0.75, 2.0)])
@pytest.mark.parametrize(
    ("slots", "service_s", "per_s", "slo_s"),
    [(8, 1.0, 40.0, 1.0), (64, 5.0, 60.0, 2.0), (256, 10.0, 80.0, 5.0)],
)
@pytest.mark.parametrize("start", [0.5, 1.0, 2.0])
def test_finds_the_slots(
    make: Make,
    low: float,
    high: float,
    slots: int,
    service_s: float,
    per_s: float,
    slo_s: float,
    start: float,
) -> None:
    """A little more than there are, so that no slot is idle."""
    least, most = settled(make(slo_s, int(start * slots)), slots, service_s, per_s)
    assert low * slots <= least
    assert most <= high * slots + 6


def test_output_length_moves_nothing() -> None:
    short, long = AimdLimit(1.0, 4), AimdLimit(1.0, 4)
    assert settled(short, 8, 0.5, 60.0)[1] <= 20
    assert settled(long, 8, 4.0, 60.0)[1] <= 20


def test_by_name() -> None:
    assert limit_of("none", 1.0) is None
    assert isinstance(limit_of("aimd", 1.0), AimdLimit)
    assert isinstance(limit_of("gradient", 1.0), GradientLimit)
