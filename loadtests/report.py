"""`make report`: runs the tables and writes what came of them as one page of HTML and as JSON.

`python -m loadtests.report --out build/report` takes less than half an hour on 2 cores that do nothing else, and says
beforehand how long each section takes; `--sections` runs some of them, `--brief` takes a few minutes, with figures that
say only that it works.
"""

import argparse
import shlex
import sys
from functools import partial
from pathlib import Path

import orjson

from loadtests.ending import run_to_end
from loadtests.fleet import FRONTS
from loadtests.peers import PEERS
from loadtests.processes import ROOT
from loadtests.report_page import page
from loadtests.report_runs import BRIEF, FULL, Runs, Section, Wanted, run_sections, say
from loadtests.report_sections import SECTIONS

WITHIN_S = 29 * 60.0


async def _report(arguments: argparse.Namespace) -> int:
    scale = BRIEF if arguments.brief else FULL
    wanted = Wanted(_fronts(arguments.beside), scale, arguments.seed, arguments.within_minutes * 60)
    runs = Runs(commands=[shlex.join(["python", "-m", "loadtests.report", *sys.argv[1:]])])
    arguments.out.mkdir(parents=True, exist_ok=True)
    await run_sections(runs, wanted, _sections(arguments.sections), partial(_save, arguments.out))
    say(f"{arguments.out / 'report.html'} after {sum(runs.took_s.values()) / 60:.1f} minutes")
    return 1 if set(runs.failures) & set(runs.plan) else 0


def _save(out: Path, runs: Runs) -> None:
    options = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    (out / "report.json").write_bytes(orjson.dumps(runs, option=options))
    (out / "report.html").write_text(page(runs))


def _fronts(names: str) -> tuple[str, ...]:
    fronts = tuple(front for front in names.split(",") if front)
    if unknown := [front for front in fronts if front not in FRONTS or front == "graceway"]:
        raise SystemExit(f"no front {', '.join(unknown)} to put beside; there are {', '.join(FRONTS[1:])}")
    return fronts


def _sections(names: str) -> list[Section]:
    """The set-up is always one of them."""
    known = {section.name: section for section in SECTIONS}
    if names == "all":
        return list(SECTIONS)
    chosen = names.split(",")
    if unknown := [name for name in chosen if name not in known]:
        raise SystemExit(f"no section {', '.join(unknown)}; there are {', '.join(known)}")
    return [section for name, section in known.items() if name == "set-up" or name in chosen]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "report")
    parser.add_argument(
        "--beside", default=",".join((*PEERS, "direct")), help="other fronts, with commas between"
    )
    parser.add_argument(
        "--sections", default="all", help=f"of {', '.join(section.name for section in SECTIONS)}"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--brief", action="store_true")
    parser.add_argument(
        "--within-minutes", type=float, default=WITHIN_S / 60, help="what is not begun then is left out"
    )
    return parser


def main() -> None:
    sys.exit(run_to_end(_report(_parser().parse_args())))


if __name__ == "__main__":
    main()
