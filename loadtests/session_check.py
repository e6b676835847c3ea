"""Checked histories of sessions: no turn that was acknowledged is lost silently, whatever is killed, frozen or replaced.

`python -m loadtests.session_check --histories 200` holds sessions through two gateways over a Redis with a replica and
three Sentinels while faults strike, and judges what the answers said (`loadtests.session_history`). Exit status: 0 when
nothing was lost silently, 1 otherwise.
"""

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtests.drill_plan import QUICK_HEALTH
from loadtests.ending import run_to_end
from loadtests.fleet import MODEL, GatewayProcess, Plan, graceway_config
from loadtests.processes import EngineProcess
from loadtests.redis_groups import running_sentinels
from loadtests.session_clients import SessionClients, until_settled
from loadtests.session_faults import FAULTS, Fault, Rig
from loadtests.session_history import Verdict, check

SESSIONS = 6
SECONDS = 1.6
PLAN = Plan(replicas=2, gateways=2, token_ms=15.0, has_small_tier=False, more_config=QUICK_HEALTH)


@asynccontextmanager
async def running_rig(options: str = "") -> AsyncIterator[Rig]:
    """Starts everything, and leaves nothing of it behind."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(running_sentinels())
        engines = [
            EngineProcess(served_model=MODEL, token_ms=PLAN.token_ms, name=f"r{n}")
            for n in range(PLAN.replicas)
        ]
        for engine in engines:
            await stack.enter_async_context(engine)
        config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "sessions.yaml"
        urls = [engine.url for engine in engines]
        config.write_text(graceway_config(PLAN, urls, None, redis.url + options))
        gateways = [GatewayProcess(config) for _ in range(PLAN.gateways)]
        for gateway in gateways:
            await stack.enter_async_context(gateway)
        yield Rig(list(gateways), engines, redis)


async def run_history(rig: Rig, fault: Fault, rng: random.Random) -> tuple[Verdict, int]:
    """One history with one fault in it; and how many requests got no answer."""
    rig.died.clear()
    dataset = await rig.dataset()
    clients = SessionClients([gateway.url for gateway in rig.gateways], MODEL, rng)
    holding = asyncio.create_task(clients.run(SESSIONS, SECONDS))
    await asyncio.sleep(rng.uniform(0.2, 0.5))
    heal = await fault.act(rig, rng)
    await asyncio.sleep(rng.uniform(0.1, 1.0))
    await heal()
    await holding
    await rig.until_healthy()
    await until_settled([gateway.url for gateway in rig.gateways])
    # On a busy machine Sentinels fail over for no other reason.
    may_lose = fault.may_lose or await rig.dataset() != dataset
    heals_at = asyncio.get_running_loop().time()
    await clients.last_turns()
    return check(clients.turns, rig.died, may_lose, heals_at), clients.failed


@dataclass(slots=True)
class Tally:
    """What all histories came to."""

    histories: int = 0
    turns: int = 0
    local: int = 0
    began_anew: int = 0
    unanswered: int = 0
    violations: int = 0

    def take(self, verdict: Verdict, failed: int) -> None:
        self.histories += 1
        self.turns += verdict.turns
        self.local += verdict.local
        self.began_anew += verdict.epochs
        self.unanswered += failed
        self.violations += len(verdict.violations)


async def run_histories(count: int, seed: int, options: str, faults: Sequence[Fault] = FAULTS) -> Tally:
    """All of them, the faults in turn. A rig that does not come back in time is started anew."""
    rng, tally = random.Random(seed), Tally()
    while tally.histories < count:
        try:
            async with running_rig(options) as rig:
                while tally.histories < count:
                    fault = faults[tally.histories % len(faults)]
                    verdict, failed = await run_history(rig, fault, rng)
                    tally.take(verdict, failed)
                    _tell(tally.histories, fault, verdict, failed)
        except TimeoutError:
            _say("     the rig was not well again in time; this history is not counted")
    _say(", ".join(f"{name} {total}" for name, total in asdict(tally).items()))
    return tally


def _tell(number: int, fault: Fault, verdict: Verdict, failed: int) -> None:
    _say(
        f"{number:>4} {fault.name:<25} {verdict.turns:>5} turns, {verdict.local:>4} not kept, "
        f"{verdict.epochs:>2} sessions began anew, {failed:>3} without answer"
    )
    for violation in verdict.violations:
        _say(f"     {violation}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _run(arguments: argparse.Namespace) -> int:
    wait, known = arguments.wait_replicas, {fault.name: fault for fault in FAULTS}
    options = "" if wait is None else f"?wait_replicas={wait}"
    faults = FAULTS if arguments.faults == "all" else [known[name] for name in arguments.faults.split(",")]
    tally = await run_histories(arguments.histories, arguments.seed, options, faults)
    return 1 if tally.violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.session_check", description=__doc__)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", default="all", help=f"of {', '.join(fault.name for fault in FAULTS)}")
    parser.add_argument("--wait-replicas", type=int, help="replicas that must have a turn; 1 for Sentinels")
    return parser


def main() -> None:
    sys.exit(run_to_end(_run(_parser().parse_args())))


if __name__ == "__main__":
    main()
