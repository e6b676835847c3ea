"""The store table: what clients notice when the state store fails under load.

`python -m loadtests.store_faults` runs every row against a real Redis behind `graceway serve`: sessions are held while
it is full, read-only, emptied, slow, frozen, killed or cut off. Every other request belongs to no session and asks the
store for nothing, so a machine that is busy makes both late. Each row's fault lasts three seconds; what the first call
waits for the store is left out, then p99 of the time to the first token may be 5 ms more with a session than without:
in the middle one of the rounds, so that one in which the machine was taken away for a moment moves nothing, while what a
fault costs each time is in all of them. Exit status: 1 when a request failed, or p99 was more than that, and more than
in the row without a fault.
"""

import argparse
import asyncio
import math
import random
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import orjson

from loadtests.client import Question, Record, open_loop, poisson
from loadtests.cut_proxy import Proxy, proxy_to
from loadtests.ending import run_to_end
from loadtests.fleet import MODEL, GatewayProcess, Plan, graceway_config
from loadtests.processes import EngineProcess, RedisProcess

CALM_S, FAULT_S, AFTER_S = 1.0, 3.0, 1.5
FIRST_S = 0.2
"""Until the first call has met the fault, and has waited its 50 ms."""
MORE_S = 0.005
TURNS = 4
"""Of a session, one after the other."""
PLAN = Plan(replicas=2, slots=64, token_ms=5.0, has_small_tier=False, slo="{ttft_s: 5.0, itl_s: 1.0}")


@dataclass(slots=True)
class Rig:
    """A gateway, its Redis, and the way between them."""

    url: str
    redis: RedisProcess
    way: Proxy
    other: RedisProcess
    """Another server, whose replica the store can become."""


Act = Callable[[Rig], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Row:
    """One fault, and its way back."""

    name: str
    act: Act
    heal: Act


@dataclass(slots=True)
class Met:
    """What clients met in all rounds of a row: seconds to the first token while the fault lasted."""

    asked: int = 0
    failed: int = 0
    local: int = 0
    plain_s: list[float] = field(default_factory=list)
    session_s: list[float] = field(default_factory=list)
    more_s: list[float] = field(default_factory=list)
    """Of each round, how much later p99 was with a session."""

    def take(self, records: Sequence[Record], during: Sequence[Record]) -> None:
        """One round: all of it, and what of it the fault may have touched."""
        self.asked += len(records)
        self.failed += sum(not record.is_whole for record in records)
        self.local += sum(record.headers.get("x-session-durability") == "local" for record in during)
        told = [(bool(r.question.headers), r.ttft_s) for r in during if r.ttft_s is not None]
        self.add(
            [s for has_session, s in told if not has_session], [s for has_session, s in told if has_session]
        )

    def add(self, plain_s: Sequence[float], session_s: Sequence[float]) -> None:
        """One round's times, without a session and with one."""
        self.plain_s += plain_s
        self.session_s += session_s
        self.more_s.append(_p99(session_s) - _p99(plain_s))

    def result(self, name: str) -> "Result":
        p99s = _p99(self.plain_s), _p99(self.session_s)
        return Result(name, self.asked, self.failed, *p99s, statistics.median(self.more_s), self.local)


@dataclass(frozen=True, slots=True)
class Result:
    """What clients met. p99 of the seconds to the first token while the fault lasted, without a session and with one, over
    all rounds; and in the middle one of them, how much more that was with one."""

    name: str
    asked: int
    failed: int
    plain_s: float
    session_s: float
    more_s: float
    local: int
    """Turns whose answer said that only their gateway knew of them."""

    def line(self) -> str:
        return (
            f"{self.name:<12}{self.asked:>6}{self.failed:>8}{self.plain_s * 1e3:>11.1f}"
            f"{self.session_s * 1e3:>10.1f}{self.more_s * 1e3:>+8.1f}{self.local:>7}"
        )


HEAD = f"{'store':<12}{'asked':>6}{'failed':>8}{'p99 plain':>11}{'session':>10}{'more':>8}{'local':>7}"


async def _nothing(rig: Rig) -> None:
    return None


async def _fill(rig: Rig) -> None:
    await rig.redis.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await rig.redis.ask("CONFIG", "SET", "maxmemory", "1")


async def _make_room(rig: Rig) -> None:
    await rig.redis.ask("CONFIG", "SET", "maxmemory", "0")


async def _demote(rig: Rig) -> None:
    await rig.redis.ask("REPLICAOF", "127.0.0.1", str(rig.other.port))


async def _promote(rig: Rig) -> None:
    await rig.redis.ask("REPLICAOF", "NO", "ONE")


async def _empty(rig: Rig) -> None:
    await rig.redis.kill()
    await rig.redis.start()


async def _sleep(rig: Rig) -> None:
    """Slow again and again: half of the time it answers nobody."""
    until = asyncio.get_running_loop().time() + FAULT_S - 0.2
    while asyncio.get_running_loop().time() < until:
        await rig.redis.ask("DEBUG", "SLEEP", "0.15")
        await asyncio.sleep(0.15)


async def _freeze(rig: Rig) -> None:
    rig.redis.freeze()


async def _thaw(rig: Rig) -> None:
    rig.redis.thaw()


async def _kill(rig: Rig) -> None:
    await rig.redis.kill()


async def _start(rig: Rig) -> None:
    await rig.redis.start()


async def _cut(rig: Rig) -> None:
    rig.way.cut()


async def _mend(rig: Rig) -> None:
    rig.way.mend()


ROWS = (
    Row("none", _nothing, _nothing),
    Row("full", _fill, _make_room),
    Row("read-only", _demote, _promote),
    Row("emptied", _empty, _nothing),
    Row("slow", _sleep, _nothing),
    Row("frozen", _freeze, _thaw),
    Row("killed", _kill, _start),
    Row("cut off", _cut, _mend),
)


@asynccontextmanager
async def running_rig() -> AsyncIterator[Rig]:
    """Starts everything, and leaves nothing of it behind."""
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(RedisProcess())
        other = await stack.enter_async_context(RedisProcess())
        way = await stack.enter_async_context(proxy_to(redis.port))
        engines = [
            EngineProcess(served_model=MODEL, slots=PLAN.slots, token_ms=PLAN.token_ms, name=f"r{n}")
            for n in range(PLAN.replicas)
        ]
        for engine in engines:
            await stack.enter_async_context(engine)
        config = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store.yaml"
        config.write_text(
            graceway_config(PLAN, [engine.url for engine in engines], None, f"redis://127.0.0.1:{way.port}")
        )
        gateway = await stack.enter_async_context(GatewayProcess(config))
        yield Rig(gateway.url, redis, way, other)


async def run_row(rig: Rig, row: Row, rate_per_s: float, seed: int, met: Met) -> None:
    """One round of a row: calm, the fault, and the time after it."""
    rng = random.Random(seed)
    begun_at = asyncio.get_running_loop().time() + 0.1
    fault_at, heal_at = begun_at + CALM_S, begun_at + CALM_S + FAULT_S
    offsets = poisson(rate_per_s, CALM_S + FAULT_S + AFTER_S, rng)
    acts = [
        asyncio.create_task(_at(when, act, rig)) for when, act in ((fault_at, row.act), (heal_at, row.heal))
    ]
    records = await open_loop((rig.url,), MODEL, _questions(row.name, seed), offsets, begun_at)
    await asyncio.gather(*acts)
    met.take(records, [r for r in records if fault_at + FIRST_S <= r.due_at < heal_at])


def _questions(name: str, seed: int) -> Iterator[Question]:
    for number in count():
        session = f"{name}-{seed}-{number // 2 // TURNS}"
        headers = {"x-session-id": session} if number % 2 else {}
        yield Question(({"role": "user", "content": session},), 4, headers)


def _p99(times: Sequence[float]) -> float:
    return sorted(times)[max(0, math.ceil(0.99 * len(times)) - 1)] if times else math.nan


async def _at(when: float, act: Act, rig: Rig) -> None:
    await asyncio.sleep(max(0.0, when - asyncio.get_running_loop().time()))
    await act(rig)


async def run_table(rows: Sequence[Row], rate_per_s: float, seed: int, rounds: int = 1) -> list[Result]:
    """All rows on one gateway, round by round, so that a machine that gets busier makes none of them worse."""
    met = [Met() for _ in rows]
    async with running_rig() as rig:
        # The first requests of a process are its slowest.
        now = asyncio.get_running_loop().time()
        await open_loop(
            (rig.url,), MODEL, _questions("warm", seed), poisson(20.0, 1.0, random.Random(0)), now
        )
        for number in range(rounds):
            for row, its in zip(rows, met, strict=True):
                await run_row(rig, row, rate_per_s, seed + number, its)
    results = [its.result(row.name) for row, its in zip(rows, met, strict=True)]
    say("\n".join([HEAD, *(result.line() for result in results)]))
    return results


def misses(results: Sequence[Result]) -> list[str]:
    """What was not kept; a row without a fault shows how far the machine itself is to blame."""
    noise_s = max((result.more_s for result in results if result.name == "none"), default=0.0)
    found = [f"{r.name}: {r.failed} requests failed" for r in results if r.failed]
    found += [
        f"{r.name}: p99 is {r.more_s * 1e3:.1f} ms more with a session"
        for r in results
        if r.more_s > MORE_S + max(0.0, noise_s)
    ]
    return found


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def _run(arguments: argparse.Namespace) -> int:
    known = {row.name: row for row in ROWS}
    rows = [known[name] for name in arguments.rows.split(",")] if arguments.rows != "all" else list(ROWS)
    results = await run_table(rows, arguments.rate, arguments.seed, arguments.rounds)
    if arguments.json:
        arguments.json.write_bytes(orjson.dumps(results, option=orjson.OPT_INDENT_2))
    for miss in misses(results):
        say(miss)
    return 1 if misses(results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.store_faults", description=__doc__)
    parser.add_argument("--rows", default="all", help=f"of {', '.join(row.name for row in ROWS)}")
    parser.add_argument("--rate", type=float, default=40.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="of each row")
    parser.add_argument("--json", type=Path, help="writes the results there, too")
    return parser


def main() -> None:
    sys.exit(run_to_end(_run(_parser().parse_args())))


if __name__ == "__main__":
    main()
