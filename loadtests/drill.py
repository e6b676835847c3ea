"""Drills: something is broken on purpose, and what must hold all the same is looked at. `graceway drill` runs this.

`list` shows them. `NAME…` or `all` runs them on the simulated fleet that ships: one fleet with the fault beside one
without. With `--url` a drill runs on your own system instead: the time before the fault is the control, and
`--fault-command` and `--heal-command` do and undo the fault. `tiers` is another program: it forces
each rung of a running gateway's ladders in turn. Exit status: 0 passed, 1 failed (the evidence is kept),
2 wrong arguments, 3 inconclusive: it was not steady without the fault either.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import orjson

from loadtests import drill_tiers
from loadtests.drill_evidence import FOLDER, save_evidence
from loadtests.drill_observed import Observed
from loadtests.drill_plan import Drill
from loadtests.drill_run import observe
from loadtests.drill_targets import CommandFailedError, own, shipped
from loadtests.drill_verdict import Verdict, verdict_on
from loadtests.drills import all_drills
from loadtests.ending import run_to_end
from loadtests.fleet import MODEL, Fleet

EXITS = {"passed": 0, "failed": 1, "inconclusive": 3}
EXIT_WRONG_ARGUMENTS = 2
EXIT_PIPE = 141
"""As a shell says of a program that a closed pipe ended."""


async def run_shipped(drill: Drill, seed: int, evidence: Path, *, protected: bool = True) -> Verdict:
    """Control and experiment at the same time, on fleets of their own."""
    setup = drill.setup if protected else drill.unprotected
    async with AsyncExitStack() as stack:
        targets = [await stack.enter_async_context(shipped(setup, with_fault=on)) for on in (False, True)]
        control, experiment = await asyncio.gather(*(observe(target, drill, seed) for target, _ in targets))
        fleets = {name: fleet for name, (_, fleet) in zip(("control", "experiment"), targets, strict=True)}
        return _judge(drill, control, experiment, evidence, fleets)


async def run_own(drill: Drill, arguments: argparse.Namespace) -> Verdict:
    """On a system that runs already."""
    target = own(
        arguments.url,
        arguments.model,
        arguments.verify,
        arguments.fault_command,
        arguments.heal_command,
    )
    seen = await observe(target, drill, arguments.seed)
    return _judge(drill, seen.before_the_fault(), seen.from_the_fault(), arguments.evidence, {})


def _judge(
    drill: Drill, control: Observed, experiment: Observed, evidence: Path, fleets: dict[str, Fleet]
) -> Verdict:
    verdict = verdict_on(drill, control, experiment)
    say(verdict.text())
    if verdict.word != "passed":
        runs = {"control": control, "experiment": experiment}
        say(f"evidence: {save_evidence(evidence, verdict, runs, fleets)}")
    return verdict


def tuned(drill: Drill, arguments: argparse.Namespace) -> Drill:
    """The drill as the command line has it."""
    load = drill.load if arguments.rate is None else replace(drill.load, rate_per_s=arguments.rate)
    times = {name: getattr(arguments, name) for name in ("fault_s", "heal_s", "duration_s")}
    return replace(drill, load=load, **{name: value for name, value in times.items() if value is not None})


async def run_all(drills: Sequence[Drill], arguments: argparse.Namespace) -> int:
    """One after the other; the worst exit status."""
    verdicts: list[Verdict] = []
    for drill in drills:
        say(f"{drill.name}: {drill.about}")
        if arguments.url:
            verdicts.append(await run_own(drill, arguments))
        else:
            protected = not arguments.without_protection
            verdicts.append(await run_shipped(drill, arguments.seed, arguments.evidence, protected=protected))
        say("")
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps(verdicts, option=orjson.OPT_INDENT_2))
    words = {verdict.word for verdict in verdicts}
    return EXITS["failed" if "failed" in words else "inconclusive" if "inconclusive" in words else "passed"]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _list() -> int:
    for drill in all_drills().values():
        say(f"{drill.name:<20}{drill.about}")
        say(f"{'':<20}protected by: {drill.protection}")
        say(f"{'':<20}on your own system: {drill.by_hand or 'the load itself is the fault'}")
    say(
        f"{'tiers':<20}Each rung of a running gateway's ladders is forced in turn: `graceway drill tiers --help`."
    )
    return 0


def _chosen(names: Sequence[str]) -> list[Drill]:
    known = all_drills()
    if list(names) == ["all"]:
        return list(known.values())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no drill {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names]


def _check(drills: Sequence[Drill], arguments: argparse.Namespace) -> None:
    """Raises ValueError where a drill can't be run like that."""
    if not arguments.url:
        return
    if arguments.without_protection:
        raise ValueError("--without-protection is for the fleet that ships, not for --url")
    for drill in drills:
        if drill.by_hand and not arguments.fault_command:
            raise ValueError(f"{drill.name} needs --fault-command: {drill.by_hand}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="graceway drill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="`list`, `all`, or drills by name")
    parser.add_argument("--url", help="your own system, instead of the simulated fleet")
    parser.add_argument("--model", default=MODEL, help="the name to ask it for")
    parser.add_argument("--verify", choices=("tokens", "shape"), default="shape", help="of --url's answers")
    parser.add_argument("--fault-command", help="a shell command that brings the fault about")
    parser.add_argument(
        "--heal-command", help="a shell command that undoes it; it runs however the drill ends"
    )
    parser.add_argument("--rate", type=float, help="requests a second")
    parser.add_argument("--fault-s", type=float, help="when the fault comes, after the load began")
    parser.add_argument("--heal-s", type=float, help="when it is healed")
    parser.add_argument("--duration-s", type=float, help="of the load")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--without-protection", action="store_true", help="with what it tests switched off: it must fail"
    )
    parser.add_argument("--evidence", type=Path, default=FOLDER, help="where a failed drill leaves a folder")
    parser.add_argument("--json", type=Path, help="writes the verdicts there, too")
    return parser


def main() -> None:
    try:
        _main()
    except BrokenPipeError:
        # Who read has seen enough, as `head` does; what is left can't be flushed either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_PIPE)


def _main() -> None:
    if sys.argv[1:2] == ["tiers"]:
        sys.exit(drill_tiers.main(sys.argv[2:]))
    arguments = _parser().parse_args()
    if arguments.names == ["list"]:
        sys.exit(_list())
    try:
        drills = [tuned(drill, arguments) for drill in _chosen(arguments.names)]
        _check(drills, arguments)
        sys.exit(run_to_end(run_all(drills, arguments)))
    except (ValueError, CommandFailedError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_WRONG_ARGUMENTS)


if __name__ == "__main__":
    main()
