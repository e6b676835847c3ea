"""The sections of a report: what each runs, and how long that takes on two quiet cores."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from loadtests import fault_table, overload_table, store_faults
from loadtests.fault_rows import ROWS, Row
from loadtests.fleet import Plan, graceway_config, running
from loadtests.kills import STREAMS, run_kills
from loadtests.overhead import run_rounds
from loadtests.overload_load import steady
from loadtests.overload_rows import Row as OverloadRow
from loadtests.overload_rows import rows as overload_rows
from loadtests.overload_trial import run_overload
from loadtests.peers import PEERS, PeerUnavailableError, installed
from loadtests.processes import ROOT
from loadtests.report_runs import Runs, Section, Wanted, say
from loadtests.trial import Trial, warm_up

RATE_PER_S = 8.0
TOKENS = 50
OTHERS = {
    "naive": "python -m loadtests.naive_front URL URL",
    "direct": "no front: the client takes the replicas in turn",
}


async def set_up(runs: Runs, wanted: Wanted) -> None:
    """The other gateways, as far as they can be had; how all are set up."""
    runs.configs["graceway"] = graceway_config(Plan(has_small_tier=False), ("URL", "URL"), None)
    runs.fronts = ["graceway"]
    for front in wanted.fronts:
        if front in PEERS:
            try:
                await installed(PEERS[front])
            except PeerUnavailableError as error:
                runs.failures[front] = str(error)
                continue
        runs.fronts.append(front)
        runs.configs[front] = PEERS[front].described() if front in PEERS else OTHERS[front]


async def overhead(runs: Runs, wanted: Wanted) -> None:
    """All fronts that are processes of their own, interleaved."""
    scale = wanted.scale
    fronts = [front for front in runs.fronts if front == "graceway" or front in PEERS]
    runs.costs = await run_rounds(["none", *fronts], scale.rounds, scale.requests, scale.seconds)


async def faults(runs: Runs, wanted: Wanted) -> None:
    """One of two replicas fails: every fault under Graceway, some of them under the others."""
    for front in runs.fronts:
        names = wanted.scale.fault_names if front == "graceway" else wanted.scale.beside
        say(f"faults: {front}")
        async with _left_out(runs, front, "faults"):
            runs.faults[front] = []
            for row in (row for row in ROWS if row.name in names):
                await _fault(runs, front, row, wanted)


async def _fault(runs: Runs, front: str, row: Row, wanted: Wanted) -> None:
    scale = wanted.scale
    short = row if row.heal_s is not None else replace(row, duration_s=scale.trial_s)
    result, trial = await fault_table.observed_row(
        short, front, RATE_PER_S, wanted.seed, scale.fault_s, scale.patience_s
    )
    runs.faults[front].append(result)
    say("  " + result.line())
    if row.name == "sigkill":
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


async def kills(runs: Runs, wanted: Wanted) -> None:
    """At random tokens."""
    for front in runs.fronts:
        if front in PEERS and PEERS[front].is_slow:
            runs.failures[f"kills, {front}"] = f"left out: it is too slow for {STREAMS} streams on two cores"
            continue
        count = wanted.scale.kills if front == "graceway" else wanted.scale.kills_beside
        say(f"kills: {front}")
        async with _left_out(runs, front, "kills"):
            runs.kills[front] = await run_kills(count, front, wanted.seed, say)


async def overload(runs: Runs, wanted: Wanted) -> None:
    """More than the capacity: what comes in time without a lower tier, front by front; then Graceway's table."""
    for front in runs.fronts:
        say(f"goodput: {front}")
        async with _left_out(runs, front, "overload"):
            await _goodput(runs, front, wanted)
    for row in (row for row in overload_rows() if row.name in wanted.scale.overload_names):
        result = await overload_table.run_row(row, TOKENS, wanted.seed)
        runs.overload.setdefault("graceway", []).append(result)
        say("  " + result.line())


async def _goodput(runs: Runs, front: str, wanted: Wanted) -> None:
    """Answers whole and in time as a share of the capacity, without a tier to go down to, load by load."""
    scale = wanted.scale
    runs.goodput[front] = {}
    async with running(overload_table.plan_of(OverloadRow("", (), False, (), front), TOKENS)) as fleet:
        await warm_up(fleet)
        for k in scale.loads:
            streams = (steady(k, scale.load_s),)
            trial = await run_overload(fleet, streams, TOKENS, wanted.seed, scale.patience_s)
            runs.goodput[front][k] = trial.goodput
            say(f"  {k:g}×: {trial.goodput:.0%}")


@asynccontextmanager
async def _left_out(runs: Runs, front: str, section: str) -> AsyncIterator[None]:
    """One of the others that fails is told, and the next one has its turn; Graceway's own failure is the section's."""
    try:
        yield
    except Exception as error:
        if front == "graceway":
            raise
        runs.failures[f"{section}, {front}"] = f"{type(error).__name__}: {error}"
        say(f"{front} is left out: {error}")


async def store(runs: Runs, wanted: Wanted) -> None:
    """What clients notice when the state store fails."""
    rows = [row for row in store_faults.ROWS if row.name in wanted.scale.store_names]
    runs.store = await store_faults.run_table(rows, 40.0, wanted.seed, wanted.scale.store_rounds)


async def restored(runs: Runs, wanted: Wanted) -> None:
    """Restoring against recomputing, on two real vLLM servers."""
    parts = [word for part in wanted.scale.restore_parts for word in ("--part", part)]
    rounds = str(wanted.scale.restore_rounds)
    runs.restored = await _bench(runs, ["kv-restore", "--rounds", rounds, *parts])


async def scaling(runs: Runs, wanted: Wanted) -> None:
    """The scaling policy in the simulator."""
    runs.scaling = await _bench(runs, ["scaling", "--seeds", str(wanted.scale.seeds)])


async def _bench(runs: Runs, words: Sequence[str]) -> dict[str, Any]:
    """What a `graceway bench …` found; whether all that it claims was seen is in there. Raises RuntimeError."""
    runs.commands.append(" ".join(["graceway", "bench", *words]))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        command = (sys.executable, "-m", "deploy", "bench", *words, "--json", str(file))
        said = await _run_to_end(command)
        if not file.exists():
            raise RuntimeError(said[-1500:])
        found: dict[str, Any] = orjson.loads(file.read_bytes())
        return found


async def _run_to_end(command: Sequence[str]) -> str:
    """What it said. However the section ends, it has ended."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        said, _ = await process.communicate()
    except asyncio.CancelledError:
        # As Ctrl-C: it has engines of its own to end.
        process.send_signal(signal.SIGINT)
        await process.communicate()
        raise
    return said.decode(errors="replace")


SECTIONS = (
    Section("set-up", 0.5, set_up),
    Section("overhead", 3.0, overhead),
    Section("faults", 7.8, faults),
    Section("kills", 2.0, kills),
    Section("overload", 7.0, overload),
    Section("store", 2.5, store),
    Section("restored", 4.5, restored),
    Section("scaling", 0.5, scaling),
)
