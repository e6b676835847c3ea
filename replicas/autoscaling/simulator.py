"""An event-driven simulation of one tier under a scaling policy: minutes of traffic in well under a second.

A gateway holds the queue and gives each replica at most its slots. A request that is predicted to wait longer than the
SLO goes down a tier at once, and one that has waited so long does too, as the gateway does it; that is what attainment
counts. It still counts as demand, so
that every policy sees what the traffic needs and not only what was admitted.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil
from typing import Protocol

from replicas.autoscaling.policy import Fleet, Load, ScalingSpec, ScalingState, decide
from replicas.autoscaling.traces import Trace, arrivals


@dataclass(frozen=True, slots=True)
class Tier:
    """What is simulated, in seconds."""

    slots: int = 8
    service_s: float = 4.0
    cold_start_s: float = 30.0
    cold_start_jitter: float = 0.2
    slo_s: float = 1.0
    """A request that waits no longer for its slot attains the SLO."""
    tick_s: float = 1.0
    spec: ScalingSpec = field(default_factory=lambda: ScalingSpec(min=1, max=16))


@dataclass(frozen=True, slots=True)
class Observation:
    """What a policy gets to see once a tick."""

    now: float
    load: Load
    fleet: Fleet
    ongoing: int
    """In flight, queued, and served a tier below: all that the traffic has under way."""


class Scaler(Protocol):
    """A policy under test; it may remember."""

    def replicas(self, seen: Observation) -> int:
        """Replicas to run from now on."""
        ...


class GracewayScaler:
    """The policy of `policy.py`."""

    def __init__(self, spec: ScalingSpec) -> None:
        self._spec, self._state = spec, ScalingState()

    def replicas(self, seen: Observation) -> int:
        decision = decide(seen.load, seen.fleet, self._spec, self._state, seen.now)
        self._state = decision.state
        return decision.replicas


class OracleScaler:
    """Knows the rate of the trace ahead of time: what is needed at any moment until a replica asked for now serves."""

    def __init__(self, trace: Trace, tier: Tier) -> None:
        self._trace, self._tier = trace, tier

    def replicas(self, seen: Observation) -> int:
        tier = self._tier
        ahead = range(0, ceil(tier.cold_start_s * (1 + tier.cold_start_jitter)) + 1, 2)
        peak = max(self._trace.rate(min(seen.now + s, self._trace.length_s - 1)) for s in ahead)
        need = ceil(peak * tier.service_s / (tier.slots * tier.spec.utilization) - 1e-9)
        return min(max(need, tier.spec.min), tier.spec.max)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run cost and gave."""

    requests: int
    attained: int
    replica_hours: float
    reversals: int
    """How often the target changed its direction."""
    targets: tuple[tuple[float, int], ...] = field(repr=False)
    """(time, replicas) whenever the target changed, the first one included."""

    @property
    def attainment(self) -> float:
        return self.attained / self.requests if self.requests else 1.0


@dataclass(slots=True, eq=False)
class _Replica:
    asked_at: float
    ready_at: float
    in_flight: int = 0
    is_draining: bool = False


def simulate(trace: Trace, scaler: Scaler, tier: Tier, seed: int) -> Outcome:
    """One run. The same trace, tier and seed bring the same requests to every scaler."""
    return _Run(trace, scaler, tier, seed).outcome()


class _Run:
    """One simulation: events in order of time, which are arrivals, ends of requests, and ticks."""

    def __init__(self, trace: Trace, scaler: Scaler, tier: Tier, seed: int) -> None:
        self._scaler, self._tier, self._trace = scaler, tier, trace
        self._rng = random.Random(f"cold starts {seed}")
        self._arrivals = arrivals(trace, random.Random(f"requests {seed}"), tier.service_s)
        first = OracleScaler(trace, tier).replicas(_at_start(tier))
        self._replicas = [_Replica(0.0, 0.0) for _ in range(first)]
        self._ends: list[tuple[float, int, _Replica | None]] = []
        self._queue: deque[tuple[float, float]] = deque()
        self._below: list[float] = []
        self._started = self._requests = self._attained = self._recent = 0
        self._mean_service_s = tier.service_s
        self._replica_s = 0.0
        self._targets = [(0.0, first)]

    def outcome(self) -> Outcome:
        upcoming = next(self._arrivals, None)
        for tick in _ticks(self._trace.length_s, self._tier.tick_s):
            while upcoming is not None and upcoming[0] <= tick:
                self._until(upcoming[0])
                self._arrive(*upcoming)
                upcoming = next(self._arrivals, None)
            self._until(tick)
            self._scale(tick)
        return Outcome(
            self._requests,
            self._attained,
            self._replica_s / 3600,
            _reversals(self._targets),
            tuple(self._targets),
        )

    def _until(self, now: float) -> None:
        """Ends what ends by then, and gives freed slots to the queue."""
        while self._ends and self._ends[0][0] <= now:
            at, _, replica = heapq.heappop(self._ends)
            if replica is not None:
                replica.in_flight -= 1
            self._serve_queue(at)

    def _serve_queue(self, now: float) -> None:
        while self._queue and now - self._queue[0][0] > self._tier.slo_s:
            _, service_s = self._queue.popleft()
            heapq.heappush(self._below, now + service_s)
        while self._queue and (replica := self._free_replica(now)) is not None:
            _, service_s = self._queue.popleft()
            self._attained += 1
            self._start(replica, now, service_s)

    def _arrive(self, now: float, service_s: float) -> None:
        self._requests += 1
        self._recent += 1
        if not self._queue and (replica := self._free_replica(now)) is not None:
            self._attained += 1
            self._start(replica, now, service_s)
        elif self._predicted_wait_s(now) <= self._tier.slo_s:
            self._queue.append((now, service_s))
        else:
            heapq.heappush(self._below, now + service_s)

    def _start(self, replica: _Replica, now: float, service_s: float) -> None:
        replica.in_flight += 1
        self._started += 1
        self._mean_service_s += 0.005 * (service_s - self._mean_service_s)
        heapq.heappush(self._ends, (now + service_s, self._started, replica))

    def _free_replica(self, now: float) -> _Replica | None:
        """The one with fewest requests that has a slot."""
        best = None
        for replica in self._replicas:
            is_free = replica.ready_at <= now and replica.in_flight < self._tier.slots
            if is_free and not replica.is_draining and (best is None or replica.in_flight < best.in_flight):
                best = replica
        return best

    def _predicted_wait_s(self, now: float) -> float:
        slots = self._tier.slots * sum(r.ready_at <= now and not r.is_draining for r in self._replicas)
        return (len(self._queue) + 1) * self._mean_service_s / slots if slots else float("inf")

    def _scale(self, now: float) -> None:
        self._replicas = [r for r in self._replicas if not (r.is_draining and r.in_flight == 0)]
        self._replica_s += len(self._replicas) * self._tier.tick_s
        while self._below and self._below[0] <= now:
            heapq.heappop(self._below)
        wanted = self._scaler.replicas(self._observe(now))
        self._recent = 0
        if wanted != self._targets[-1][1]:
            self._targets.append((now, wanted))
        active = [r for r in self._replicas if not r.is_draining]
        for _ in range(wanted - len(active)):
            self._ask(now)
        self._let_go(active, len(active) - wanted, now)
        self._serve_queue(now)

    def _ask(self, now: float) -> None:
        jitter = self._tier.cold_start_jitter
        ready_at = now + self._tier.cold_start_s * self._rng.uniform(1 - jitter, 1 + jitter)
        self._replicas.append(_Replica(now, ready_at))
        # The queue is looked at again when it is ready.
        heapq.heappush(self._ends, (ready_at, 0, None))

    def _let_go(self, active: list[_Replica], count: int, now: float) -> None:
        """Starting ones first, then those with least to finish."""
        order = sorted(active, key=lambda r: (r.ready_at <= now, r.in_flight, -r.asked_at))
        for replica in order[: max(0, count)]:
            replica.is_draining = True

    def _observe(self, now: float) -> Observation:
        active = [r for r in self._replicas if not r.is_draining]
        in_flight = sum(r.in_flight for r in self._replicas)
        load = Load(
            as_of=now,
            in_flight=in_flight,
            queued=len(self._queue),
            arrivals_per_s=self._recent / self._tier.tick_s,
            service_s=self._mean_service_s,
            predicted_wait_s=self._predicted_wait_s(now),
        )
        running = sum(r.ready_at <= now for r in active)
        fleet = Fleet(self._targets[-1][1], running, self._tier.slots, self._tier.cold_start_s)
        return Observation(now, load, fleet, in_flight + len(self._queue) + len(self._below))


def _at_start(tier: Tier) -> Observation:
    return Observation(0.0, Load(0.0, 0), Fleet(1, 1, tier.slots, tier.cold_start_s), 0)


def _ticks(length_s: float, tick_s: float) -> Iterator[float]:
    return (index * tick_s for index in range(1, int(length_s / tick_s) + 1))


def _reversals(targets: list[tuple[float, int]]) -> int:
    changes = [after > before for (_, before), (_, after) in pairwise(targets)]
    return sum(one != other for one, other in pairwise(changes))
