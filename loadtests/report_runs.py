"""What a report is made of: its sections, run one after the other within a plan of time; one that fails loses no other."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadtests import fault_table, overload_table, store_faults
from loadtests.fault_rows import ROWS
from loadtests.kills import KillReport
from loadtests.overhead import Cost
from loadtests.report_machine import machine

FAULTS = (
    *("none", "sigkill", "cut", "sigstop", "slow", "all-500", "all-503"),
    *("wrong", "hang-up", "silent"),
)
FAULTS_BESIDE = ("sigkill", "sigstop", "all-500")
"""The rows that the other fronts are put through, too."""
OVERLOADS = ("3x-small", "10x-5%", "spike", "ramp")
LATE_SHARE = 1.5
"""A section may take so many times what was planned."""


@dataclass(slots=True)
class Runs:
    """Everything measured. Maps are by front."""

    machine: dict[str, str] = field(default_factory=machine)
    commands: list[str] = field(default_factory=list)
    plan: dict[str, float] = field(default_factory=dict)
    """Minutes by section."""
    took_s: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Sections that could not be made, and fronts that could not be had; why."""
    fronts: list[str] = field(default_factory=list)
    configs: dict[str, str] = field(default_factory=dict)
    costs: list[Cost] = field(default_factory=list)
    faults: dict[str, list[fault_table.Result]] = field(default_factory=dict)
    gaps: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    cut_streams: dict[str, int] = field(default_factory=dict)
    kills: dict[str, KillReport] = field(default_factory=dict)
    overload: dict[str, list[overload_table.Result]] = field(default_factory=dict)
    goodput: dict[str, dict[float, float]] = field(default_factory=dict)
    store: list[store_faults.Result] = field(default_factory=list)
    restored: dict[str, Any] = field(default_factory=dict)
    """What `graceway bench kv-restore` wrote."""
    scaling: dict[str, Any] = field(default_factory=dict)
    """What `graceway bench scaling` wrote."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything: `full` is for a report, `brief` to see that it works."""

    rounds: int = 6
    requests: int = 400
    seconds: float = 1.0
    fault_names: tuple[str, ...] = FAULTS
    beside: tuple[str, ...] = FAULTS_BESIDE
    fault_s: float = 3.0
    trial_s: float = 10.0
    patience_s: float = 15.0
    loads: tuple[float, ...] = (0.5, 1.0, 2.0, 3.0)
    load_s: float = 6.0
    overload_names: tuple[str, ...] = OVERLOADS
    kills: int = 200
    kills_beside: int = 60
    store_names: tuple[str, ...] = tuple(row.name for row in store_faults.ROWS)
    store_rounds: int = 3
    restore_rounds: int = 2
    restore_parts: tuple[str, ...] = ("length", "turns", "killed")
    seeds: int = 8


FULL = Scale()
BRIEF = Scale(
    rounds=1,
    requests=50,
    seconds=0.5,
    fault_names=("sigkill",),
    beside=("sigkill",),
    trial_s=6.0,
    loads=(0.5, 2.0),
    load_s=3.0,
    overload_names=("spike",),
    kills=10,
    kills_beside=10,
    store_names=("none", "killed"),
    store_rounds=1,
    restore_rounds=1,
    restore_parts=("length",),
    seeds=1,
)
assert {row.name for row in ROWS} >= {*FAULTS, *FAULTS_BESIDE}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a report is to hold: `fronts` stand beside Graceway."""

    fronts: tuple[str, ...]
    scale: Scale
    seed: int
    within_s: float


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report. `minutes` is what it takes on two quiet cores."""

    name: str
    minutes: float
    run: Callable[[Runs, Wanted], Awaitable[None]]


async def run_sections(
    runs: Runs, wanted: Wanted, sections: Sequence[Section], save: Callable[[Runs], None]
) -> None:
    """Each in its turn. Whatever fails, is late or has no time left is told; the report is saved after each."""
    runs.plan = {section.name: section.minutes for section in sections}
    say(plan_text(sections))
    until = time.monotonic() + wanted.within_s
    for section in sections:
        begun = time.monotonic()
        limit_s = min(section.minutes * 60 * LATE_SHARE, until - begun)
        try:
            await _in_time(section, runs, wanted, limit_s)
        except Exception as error:  # Whatever goes wrong in one section, the others are still of use.
            runs.failures[section.name] = f"{type(error).__name__}: {error}"
            say(f"{section.name} failed: {error}")
        runs.took_s[section.name] = time.monotonic() - begun
        say(f"{section.name}: {runs.took_s[section.name] / 60:.1f} of {section.minutes:g} minutes")
        save(runs)


async def _in_time(section: Section, runs: Runs, wanted: Wanted, limit_s: float) -> None:
    if limit_s <= 0:
        raise TimeoutError("no time was left for it")
    try:
        async with asyncio.timeout(limit_s):
            await section.run(runs, wanted)
    except TimeoutError:
        raise TimeoutError(f"not done after {limit_s / 60:.1f} minutes") from None


def plan_text(sections: Sequence[Section]) -> str:
    """How long everything takes, before it begins."""
    lines = [f"  {section.name:<12}{section.minutes:>5g} min" for section in sections]
    total = sum(section.minutes for section in sections)
    return "\n".join(["the plan, on two quiet cores:", *lines, f"  {'all':<12}{total:>5g} min"])


def say(line: str) -> None:
    """Progress; the figures are in the report."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
