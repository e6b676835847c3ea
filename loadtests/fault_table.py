"""The fault table: what clients notice when one of two replicas fails under steady load.

`python -m loadtests.fault_table` runs every row and exits 1 if one misses its target. `--front direct` and
`--front vllm-router` run the same rows without a gateway and with another one, to compare.
`--kills 1000` kills replicas at random tokens instead and counts what is lost, repeated or divergent.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import uvloop

from loadtests.client import PATIENCE_S
from loadtests.fault_rows import ROWS, Row
from loadtests.fleet import FRONTS, Plan, running
from loadtests.kills import run_kills
from loadtests.trial import Trial, run_trial, warm_up

FAULT_S = 5.0
LAG_TOLD_MS = 100.0
_HEAD = (
    f"{'fault':<16}{'asked':>6}{'in time':>9}{'whole':>9}{'degraded':>10}{'gap s':>7}"
    f"{'lost':>6}{'twice':>6}{'wrong':>6}{'silent':>7}{'lag ms':>8}  verdict"
)


@dataclass(frozen=True, slots=True)
class Result:
    """One row as it came out."""

    fault: str
    asked: int
    in_time: float
    whole: float
    degraded: float
    max_gap_s: float
    lost: int
    repeated: int
    wrong: int
    silent_ends: int
    lag_ms: float
    served_by: list[int]
    misses: list[str]
    complaints: list[dict[str, object]]

    def line(self) -> str:
        verdict = "; ".join(self.misses) or "kept"
        if self.lag_ms > LAG_TOLD_MS:
            verdict += " (the load generator itself was late)"
        return (
            f"{self.fault:<16}{self.asked:>6}{self.in_time:>9.1%}{self.whole:>9.1%}{self.degraded:>10.1%}"
            f"{self.max_gap_s:>7.2f}{self.lost:>6}{self.repeated:>6}{self.wrong:>6}{self.silent_ends:>7}"
            f"{self.lag_ms:>8.1f}  {verdict}"
        )


def summarized(row: Row, trial: Trial, more_misses: list[str]) -> Result:
    return Result(
        fault=row.name,
        asked=len(trial.records),
        in_time=trial.share_in_time,
        whole=trial.share_whole,
        degraded=trial.share_degraded,
        max_gap_s=trial.max_gap_s,
        lost=trial.lost,
        repeated=trial.repeated,
        wrong=len(trial.wrong()),
        silent_ends=len(trial.silent_ends()),
        lag_ms=trial.max_lag_s * 1000,
        served_by=[len(trial.served_by(number)) for number in range(len(trial.replicas))],
        misses=row.misses(trial) + more_misses,
        complaints=trial.complaints(),
    )


async def run_row(row: Row, front: str, rate_per_s: float, seed: int, fault_s: float = FAULT_S) -> Result:
    """One row on a fleet of its own."""
    return (await observed_row(row, front, rate_per_s, seed, fault_s))[0]


async def observed_row(
    row: Row, front: str, rate_per_s: float, seed: int, fault_s: float, patience_s: float = PATIENCE_S
) -> tuple[Result, Trial]:
    """The row as it came out, and each of its requests."""
    async with running(Plan(front)) as fleet:
        await warm_up(fleet)
        load = replace(row.load(rate_per_s, seed), patience_s=patience_s)
        trial = await run_trial(fleet, load, row.fault, fault_s, row.heal, row.heal_s)
        return summarized(row, trial, await row.after(fleet)), trial


async def run_table(rows: Sequence[Row], front: str, rate_per_s: float, seed: int) -> list[Result]:
    say(_HEAD)
    results: list[Result] = []
    for row in rows:
        results.append(await run_row(row, front, rate_per_s, seed))
        say(results[-1].line())
    return results


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _rows(names: str) -> list[Row]:
    if names == "all":
        return list(ROWS)
    known = {row.name: row for row in ROWS}
    unknown = [name for name in names.split(",") if name not in known]
    if unknown:
        raise SystemExit(f"no row {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.fault_table", description=__doc__)
    parser.add_argument("--rows", default="all", help=f"of {', '.join(row.name for row in ROWS)}")
    parser.add_argument("--front", choices=FRONTS, default="graceway")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, help="kills at random tokens, instead of the table")
    parser.add_argument("--json", type=Path, help="writes the results there, too")
    return parser


def main() -> None:
    arguments = _parser().parse_args()
    if arguments.kills:
        report = uvloop.run(run_kills(arguments.kills, arguments.front, arguments.seed, say))
        payload, is_kept = orjson.dumps(report, option=orjson.OPT_INDENT_2), report.is_kept
    else:
        table = run_table(_rows(arguments.rows), arguments.front, arguments.rate, arguments.seed)
        results = uvloop.run(table)
        payload = orjson.dumps(results, option=orjson.OPT_INDENT_2)
        is_kept = not any(result.misses for result in results)
    if arguments.json:
        arguments.json.write_bytes(payload)
    sys.exit(0 if is_kept else 1)


if __name__ == "__main__":
    main()
