"""`graceway bench scaling`: the scaling policy against Serve's default and against knowing the future, simulated.

Serve's default is Serve's own code, with its default delays and look-back, told the same share of slots to fill and
given the same view of the traffic. `graceway bench mig`: how long the planner takes for eight GPUs.
"""

import os
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import mean
from types import SimpleNamespace
from typing import Any

from rich.table import Table

from deploy.workers import end_with_parent
from replicas.autoscaling.simulator import (
    GracewayScaler,
    Observation,
    OracleScaler,
    Outcome,
    Scaler,
    Tier,
    simulate,
)
from replicas.autoscaling.traces import TRACES, Trace, trace
from replicas.mig.geometry import GIB, Geometry
from replicas.mig.need import Need, Slo
from replicas.mig.planner import NoPlan, plan

SCALERS = ("graceway", "serve", "oracle")


class ServeDefaultScaler:
    """Serve's default policy and its delays, from Serve."""

    def __init__(self, tier: Tier) -> None:
        from ray.serve.config import AutoscalingConfig

        self._config = AutoscalingConfig(
            min_replicas=tier.spec.min,
            max_replicas=tier.spec.max,
            target_ongoing_requests=tier.slots * tier.spec.utilization,
        )
        self._seen: deque[tuple[float, int]] = deque()
        self._state: dict[str, Any] = {}

    def replicas(self, seen: Observation) -> int:
        from ray.serve.autoscaling_policy import (
            _apply_delay_logic,
            _apply_scaling_factors,
            _core_replica_queue_length_policy,
        )

        config = self._config
        self._seen.append((seen.now, seen.ongoing))
        while self._seen[0][0] <= seen.now - config.look_back_period_s:
            self._seen.popleft()
        context = SimpleNamespace(
            current_num_replicas=seen.fleet.running,
            target_num_replicas=seen.fleet.target,
            total_num_requests=sum(ongoing for _, ongoing in self._seen) / len(self._seen),
            config=config,
        )
        desired, _ = _core_replica_queue_length_policy(context)
        scaled = _apply_scaling_factors(desired, seen.fleet.running, config)
        target, self._state = _apply_delay_logic(
            max(0, scaled), seen.fleet.target, config, self._state, _now=seen.now
        )
        return int(min(max(target, config.min_replicas), config.max_replicas))


@dataclass(frozen=True, slots=True)
class Row:
    """One scaler on one trace, over the seeds."""

    trace: str
    scaler: str
    attainment: float
    worst_attainment: float
    replica_hours: float
    reversals: float
    most_reversals: int


def measure(seeds: Iterable[int], traces: Iterable[str] = TRACES, workers: int = 2) -> list[Row]:
    """Every scaler on every trace over the seeds, on so many processes."""
    jobs = [(name, scaler, tuple(seeds)) for name in traces for scaler in SCALERS]
    with ProcessPoolExecutor(workers, initializer=end_with_parent, initargs=(os.getpid(),)) as pool:
        return list(pool.map(_row, jobs))


def _row(job: tuple[str, str, tuple[int, ...]]) -> Row:
    name, scaler, seeds = job
    tier = Tier()
    outcomes: list[Outcome] = []
    for seed in seeds:
        chosen = trace(name, seed)
        outcomes.append(simulate(chosen, scaler_of(scaler, chosen, tier), tier, seed))
    return Row(
        name,
        scaler,
        mean(o.attainment for o in outcomes),
        min(o.attainment for o in outcomes),
        mean(o.replica_hours for o in outcomes),
        mean(o.reversals for o in outcomes),
        max(o.reversals for o in outcomes),
    )


def scaler_of(name: str, chosen: Trace, tier: Tier) -> Scaler:
    if name == "graceway":
        return GracewayScaler(tier.spec)
    return ServeDefaultScaler(tier) if name == "serve" else OracleScaler(chosen, tier)


@dataclass(frozen=True, slots=True)
class Claim:
    """Something said of the policy, and whether these rows bear it out."""

    text: str
    seen: str
    holds: bool


def claims(rows: Iterable[Row]) -> Iterator[Claim]:
    """What is promised of the policy, judged on the means over the seeds."""
    by_trace: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_trace.setdefault(row.trace, {})[row.scaler] = row
    for name, found in by_trace.items():
        ours, serve = found["graceway"], found["serve"]
        yield Claim(
            f"{name}: attains more than Serve's default, for no more replica-hours",
            f"{ours.attainment - serve.attainment:+.2%}, {ours.replica_hours / serve.replica_hours - 1:+.1%} hours",
            ours.attainment > serve.attainment and ours.replica_hours <= serve.replica_hours,
        )
    if "step" in by_trace:
        most = by_trace["step"]["graceway"].most_reversals
        yield Claim("step: at most one reversal", str(most), most <= 1)
    if "diurnal" in by_trace:
        yield _day(by_trace["diurnal"])


def _day(found: Mapping[str, Row]) -> Claim:
    more = found["graceway"].replica_hours / found["oracle"].replica_hours - 1
    return Claim("diurnal: within 15 % of the oracle's replica-hours", f"{more:+.1%}", more <= 0.15)


HEAD = ("trace", "policy", "in time", "worst seed", "replica-hours", "reversals", "most")


def cells(row: Row) -> tuple[str, ...]:
    """A row in words, in the order of HEAD."""
    return (
        row.trace,
        row.scaler,
        f"{row.attainment:.2%}",
        f"{row.worst_attainment:.2%}",
        f"{row.replica_hours:.2f}",
        f"{row.reversals:.1f}",
        str(row.most_reversals),
    )


def as_table(rows: Iterable[Row]) -> Table:
    """For a terminal."""
    table = Table(*HEAD)
    for row in rows:
        table.add_row(*cells(row), end_section=row.scaler == SCALERS[-1])
    return table


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """Seconds of CPU for one plan."""

    cases: int
    planned: int
    p50_s: float
    p99_s: float
    worst_s: float


def measure_planner(geometry: Geometry, gpus: int, cases: int, seed: int) -> PlanTimes:
    """Random sets of one to four models, from 0.3 to 100 GiB, on so many GPUs."""
    rng = random.Random(seed)
    spent: list[float] = []
    planned = 0
    for _ in range(cases):
        needs = [_random_need(rng, f"model-{index}") for index in range(rng.randint(1, 4))]
        before = time.process_time()
        try:
            plan(needs, geometry, gpus)
            planned += 1
        except NoPlan:
            pass
        spent.append(time.process_time() - before)
    spent.sort()
    return PlanTimes(cases, planned, spent[cases // 2], spent[cases * 99 // 100], spent[-1])


def _random_need(rng: random.Random, name: str) -> Need:
    return Need(
        name,
        weights_bytes=int(rng.choice([0.3, 1, 3, 8, 16, 28, 60, 100]) * GIB),
        kv_bytes_per_token=rng.choice([24_576, 57_344, 131_072, 196_608]),
        context_tokens=rng.choice([2048, 8192, 32_768]),
        concurrency=rng.choice([4, 16, 64, 200, 600, 1500]),
        slo=Slo(itl_s=rng.choice([0.02, 0.05, 0.2])),
        min_replicas=rng.choice([1, 2, 3]),
    )
