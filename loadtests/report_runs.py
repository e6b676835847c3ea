"""What a report is made of: the tables of this folder, run one after the other, with other fronts beside."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from loadtests import fault_table, overload_table
from loadtests.fault_rows import ROWS
from loadtests.fleet import Plan, graceway_config, running
from loadtests.kills import KillReport, run_kills
from loadtests.overhead import Cost, run_rounds
from loadtests.overload_load import steady
from loadtests.overload_rows import Row, rows
from loadtests.report_machine import machine
from loadtests.trial import Load, Trial, nothing, run_trial

FAULTS_BESIDE = ("sigkill", "sigstop", "slow", "all-500", "wrong")
"""The rows that the other fronts are put through, too."""
LOADS = (0.5, 1.0, 2.0, 4.0)


@dataclass(slots=True)
class Runs:
    """Everything measured. Maps are by front."""

    machine: dict[str, str] = field(default_factory=machine)
    commands: list[str] = field(default_factory=list)
    configs: dict[str, str] = field(default_factory=dict)
    costs: list[Cost] = field(default_factory=list)
    faults: dict[str, list[fault_table.Result]] = field(default_factory=dict)
    gaps: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    cut_streams: dict[str, int] = field(default_factory=dict)
    overload: dict[str, list[overload_table.Result]] = field(default_factory=dict)
    goodput: dict[str, dict[float, float]] = field(default_factory=dict)
    kills: dict[str, KillReport] = field(default_factory=dict)
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: `full` is for a report, `brief` to see that it works."""

    rounds: int = 5
    fault_names: tuple[str, ...] = tuple(row.name for row in ROWS)
    beside: tuple[str, ...] = FAULTS_BESIDE
    loads: tuple[float, ...] = LOADS
    load_s: float = 12.0
    overload_names: tuple[str, ...] = ("control-3x", "3x-small", "10x-small", "3x", "10x-5%", "spike", "ramp")
    kills: int = 200


FULL = Scale()
BRIEF = Scale(1, ("sigkill",), ("sigkill",), (0.5, 3.0), 4.0, (), 10)
Part = Callable[["Runs", tuple[str, ...], Scale, int], object]


async def run_everything(fronts: tuple[str, ...], scale: Scale, seed: int) -> Runs:
    """`fronts` stand beside Graceway."""
    begun_s = time.monotonic()
    runs = Runs()
    _say_configs(runs, fronts)
    say("what it costs")
    peers = [front for front in fronts if front == "vllm-router"]
    runs.costs = await run_rounds(["none", "graceway", *peers], scale.rounds, 300, 1.5)
    for front in ("graceway", *fronts):
        await _run_front(runs, front, scale, seed)
    runs.took_s = time.monotonic() - begun_s
    return runs


async def _run_front(runs: Runs, front: str, scale: Scale, seed: int) -> None:
    say(f"faults: {front}")
    names = scale.fault_names if front == "graceway" else scale.beside
    chosen = [row for row in ROWS if row.name in names]
    runs.faults[front] = await fault_table.run_table(chosen, front, 8.0, seed)
    await _around_a_kill(runs, front, seed)
    say(f"overload: {front}")
    runs.goodput[front] = {k: await _goodput(front, k, scale.load_s, seed) for k in scale.loads}
    if front == "graceway":
        tables = [row for row in rows() if row.name in scale.overload_names]
        runs.overload[front] = await overload_table.run_table(tables, 50, seed) if tables else []
    say(f"kills: {front}")
    runs.kills[front] = await run_kills(scale.kills, front, seed, say)


async def _goodput(front: str, k: float, seconds: float, seed: int) -> float:
    """Answers whole and in time as a share of the capacity, without a tier to go down to."""
    row = Row(f"{k:g}x", (steady(k, seconds),), False, (), front)
    found = (await overload_table.run_row(row, 50, seed)).goodput
    say(f"  {k:g}×: {found:.0%}")
    return found


async def _around_a_kill(runs: Runs, front: str, seed: int) -> None:
    sigkill = next(row for row in ROWS if row.name == "sigkill")
    async with running(Plan(front)) as fleet:
        trial = await run_trial(fleet, Load(8.0, 12.0, seed=seed), sigkill.fault, 5.0, nothing, None)
    runs.gaps[front] = _gaps(trial)
    runs.cut_streams[front] = sum(not record.is_whole for record in trial.records)


def _gaps(trial: Trial) -> list[tuple[float, float]]:
    """When tokens came, and after how long a silence; what would be drawn in one place is kept once."""
    found = {
        (round(later - trial.begun_at, 1), round(later - earlier, 2))
        for record in trial.records
        for earlier, later in zip(record.token_times, record.token_times[1:], strict=False)
    }
    return sorted(found)


def _say_configs(runs: Runs, fronts: tuple[str, ...]) -> None:
    runs.configs["graceway"] = graceway_config(replace(Plan(), has_small_tier=False), [], None)
    known = {
        "vllm-router": "vllm-router --policy round_robin --worker-urls URL URL",
        "naive": "python -m loadtests.naive_front URL URL",
        "direct": "no front: the client takes the replicas in turn",
    }
    runs.configs |= {front: known[front] for front in fronts}


def say(line: str) -> None:
    """Progress; the figures are in the report."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
