"""`make report`: runs the tables and writes what came of them as one page of HTML and as JSON.

`python -m loadtests.report --out build/report` takes less than half an hour on 2 cores; `--brief` a few minutes, with
figures that say only that it works.
"""

import argparse
import shlex
import sys
from pathlib import Path

import orjson

from loadtests.ending import run_to_end
from loadtests.fleet import FRONTS
from loadtests.processes import ROOT
from loadtests.report_page import page
from loadtests.report_runs import BRIEF, FULL, run_everything, say


async def _report(arguments: argparse.Namespace) -> int:
    fronts = tuple(front for front in arguments.beside.split(",") if front)
    if unknown := [front for front in fronts if front not in FRONTS or front == "graceway"]:
        raise SystemExit(f"no front {', '.join(unknown)} to put beside; there are {', '.join(FRONTS[1:])}")
    runs = await run_everything(fronts, BRIEF if arguments.brief else FULL, arguments.seed)
    runs.commands.append(shlex.join(["python", "-m", "loadtests.report", *sys.argv[1:]]))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "report.json").write_bytes(
        orjson.dumps(runs, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    )
    (arguments.out / "report.html").write_text(page(runs))
    say(f"{arguments.out / 'report.html'} after {runs.took_s / 60:.1f} minutes")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.report", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "report")
    parser.add_argument("--beside", default="vllm-router,direct", help="other fronts, with commas between")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brief", action="store_true")
    return parser


def main() -> None:
    sys.exit(run_to_end(_report(_parser().parse_args())))


if __name__ == "__main__":
    main()
