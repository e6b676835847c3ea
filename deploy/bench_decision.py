"""`graceway bench decision`: what one decision costs, over fleets and numbers of sessions, without any I/O."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from gateway.fleet import Fleet
from gateway.policy.decide import decide
from gateway.policy.facts import Facts
from gateway.policy.health import Health
from gateway.policy.route import route_of
from gateway.replica import Place
from gateway.specs import BreakerSpec, RoutingSpec, TierSpec

DECISIONS = 5000
PRIMARY = "primary"


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of the CPU for one decision, snapshot included: what other processes do on the machine is not in it."""

    replicas: int
    sessions: int
    p50_us: float
    p99_us: float


def fleet_of(replicas: int, rng: Random) -> Fleet:
    """A tier of so many ready replicas with 16 slots each, some of them busy."""
    tier = TierSpec(name=PRIMARY, backend="vllm", slots=16)
    fleet = Fleet("chat", [tier], BreakerSpec(), rng, zone="")
    live = fleet.tiers[PRIMARY]
    places = {f"r{n}": Place(f"r{n}", f"http://10.0.0.1:{n + 1}", "m", slots=16) for n in range(replicas)}
    for replica in fleet.place(live, places):
        replica.become(Health("ready"))
        replica.in_flight = rng.randrange(16)
    return fleet


def measure(replicas: int, sessions: int, rng: Random) -> Cost:
    """Decides for sessions that are bound, in random order; one in ten is new."""
    fleet = fleet_of(replicas, rng)
    names = list(fleet.tiers[PRIMARY].replicas)
    bindings = {f"s{n}": {PRIMARY: names[n % replicas]} for n in range(sessions)}
    spec = RoutingSpec()
    route = route_of(spec.filters, spec.scorers, spec.picker)
    costs: list[float] = []
    for session in _asked(sessions, rng):
        now = time.monotonic()
        facts = Facts("chat", now, now + 60.0, session=session)
        begun = time.thread_time_ns()
        decide(facts, fleet.snapshot(now, True, bindings.get(session, {})), (), now, rng, route)
        costs.append((time.thread_time_ns() - begun) / 1000)
    costs.sort()
    return Cost(replicas, sessions, costs[len(costs) // 2], costs[len(costs) * 99 // 100])


def _asked(sessions: int, rng: Random) -> Iterator[str]:
    for number in range(DECISIONS):
        is_new = number % 10 == 0
        yield f"new{number}" if is_new else f"s{rng.randrange(sessions)}"


def run() -> list[str]:
    """The table, line by line."""
    rng = Random(1)
    lines = [f"{'replicas':>9}{'sessions':>11}{'p50 µs':>9}{'p99 µs':>9}"]
    for replicas, sessions in ((2, 1000), (100, 1000), (1000, 1000), (1000, 100_000), (1000, 1_000_000)):
        cost = measure(replicas, sessions, rng)
        lines.append(f"{cost.replicas:>9}{cost.sessions:>11}{cost.p50_us:>9.1f}{cost.p99_us:>9.1f}")
    return lines
