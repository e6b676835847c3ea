"""`make load`: Locust against `graceway serve` on simulated replicas, started for the run and ended with it.

`python -m loadtests.load [options] [-- Locust's own arguments]`. Clients are of two tenants, and some speak gRPC. With
`--url` it starts nothing and loads what runs there; where that has keys or gRPC, Locust's own `--keys` and `--grpc` say
so. `--web` opens Locust's page instead of a run of 60 seconds. The exit status is Locust's: 1 where a limit was not kept.

`--streams 500` holds so many streams open at 20 tokens a second each, with Locust on one core and all else on the
others, and says how late Locust itself was. With `--front direct` there is no gateway, and what is measured is Locust.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from loadtests.ending import run_to_end
from loadtests.fleet import FRONTS, MODEL, Plan, running
from loadtests.processes import ROOT, free_port

LOCUSTFILE = ROOT / "loadtests" / "locustfile.py"
GRACE_S = 15.0
STREAM_TOKENS, STREAM_TOKEN_MS = 200, 50.0
TENANTS = (("acme", "key-of-acme"), ("globex", "key-of-globex"))
"""Of the simulated fleet, with their keys."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is loaded. `grpc` is `host:port` and `keys` a file of tenants and their keys, or empty."""

    url: str
    grpc: str = ""
    keys: str = ""


def locust_command(target: Target, arguments: argparse.Namespace) -> list[str]:
    """The command line of the run: what is not given has a default that suits the simulated fleet."""
    command = [str(Path(sys.executable).parent / "locust"), "-f", str(LOCUSTFILE), "--host", target.url]
    command += ["--model", arguments.model, "--grpc", target.grpc, "--keys", target.keys]
    if arguments.workers > 1:
        command += ["--processes", str(arguments.workers)]
    if arguments.web:
        return [*command, "--class-picker", *arguments.locust]
    users, seconds = str(arguments.streams or arguments.users), f"{arguments.seconds}s"
    if arguments.streams:
        command += ["--answer-tokens", str(STREAM_TOKENS)]
    command += ["--headless", "--only-summary", "-u", users, "-r", users, "-t", seconds]
    command += ["--stop-timeout", "30", "--max-ttft-p99-s", _ttft_limit(arguments)]
    return [*command, *arguments.locust, *(["Streams"] if arguments.streams else [])]


def _ttft_limit(arguments: argparse.Namespace) -> str:
    if arguments.ttft_s is not None:
        return str(arguments.ttft_s)
    return "none" if arguments.streams else "1.0"


@asynccontextmanager
async def target(arguments: argparse.Namespace) -> AsyncIterator[Target]:
    """The operator's own server, or a fleet that lives as long as the run."""
    if arguments.url:
        yield Target(arguments.url)
        return
    plan = _plan(arguments)
    async with running(plan) as fleet:
        if plan.front != "graceway":
            yield Target(fleet.urls[0])
            return
        assert fleet.config is not None
        keys = fleet.config.with_name("keys.txt")
        keys.write_text("".join(f"{tenant} {key}\n" for tenant, key in TENANTS))
        yield Target(fleet.urls[0], f"127.0.0.1:{plan.grpc_port}", str(keys))


def _plan(arguments: argparse.Namespace) -> Plan:
    """For streams, one engine with room for all of them: what waits is not what is measured."""
    if arguments.streams:
        plan = Plan(arguments.front, 1, 2 * arguments.streams, STREAM_TOKEN_MS, has_small_tier=False)
    else:
        plan = Plan(arguments.front, arguments.replicas, arguments.slots)
    return replace(plan, grpc_port=free_port(), more_config=_keys())


def _keys() -> str:
    keys = "".join(
        f"  - {{name: {tenant}, sha256: {sha256(key.encode()).hexdigest()}, highest_priority: critical}}\n"
        for tenant, key in TENANTS
    )
    return f"keys:\n{keys}"


async def load(arguments: argparse.Namespace) -> int:
    """The run's exit status."""
    cores = sorted(os.sched_getaffinity(0))
    if arguments.streams and len(cores) > 1:
        # The fleet is started on all cores but one, which is Locust's.
        os.sched_setaffinity(0, cores[:-1])
    async with target(arguments) as found:
        process = await asyncio.create_subprocess_exec(*locust_command(found, arguments), cwd=ROOT)
        if arguments.streams:
            os.sched_setaffinity(process.pid, cores[-1:])
        try:
            return await process.wait()
        finally:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await process.wait()
                return


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="load this server instead of a fleet of its own")
    parser.add_argument("--model", default=MODEL, help="the name to ask for")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--slots", type=int, default=16, help="of each replica")
    parser.add_argument("--users", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument(
        "--ttft-s",
        type=float,
        help="limit of the 99th percentile: 1, or none with --streams, which all begin at once",
    )
    parser.add_argument(
        "--streams", type=int, default=0, help="open all the time, on one core of Locust's own"
    )
    parser.add_argument(
        "--front", choices=FRONTS, default="graceway", help="what stands before the simulated replicas"
    )
    parser.add_argument("--workers", type=int, default=1, help="Locust processes that share the load")
    parser.add_argument("--web", action="store_true", help="Locust's page on port 8089, no run by itself")
    parser.add_argument("locust", nargs="*", help="after --: further arguments of Locust")
    return parser


def main() -> None:
    sys.exit(run_to_end(load(_parser().parse_args())))


if __name__ == "__main__":
    main()
