"""Kills at random tokens: replicas are killed and started again, in turn, while streams run on all of them.

A kill is one stream that is taken from under its client, wherever it happens to be: its replica's process gets
SIGKILL, or the replica closes its connections.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import count

from loadtests.client import Question, Record, ask
from loadtests.fleet import MODEL, Fleet, Plan, running
from loadtests.processes import EngineProcess

REPLICAS = 8
STREAMS = 48
TOKENS = 100
PAUSE_S = 0.8
CUT_S = 0.05
_FAST_RECOVERY = """\
health: {interval_s: 1.0, timeout_s: 1.0, up_after: 1}
retry: {budget_share: 1.0, budget_floor_per_s: 1000.0, max_attempts: 6}
"""


@dataclass(frozen=True, slots=True)
class KillReport:
    """What came of the kills."""

    kills: int
    process_kills: int
    cuts: int
    answers: int
    whole: int
    declared_failures: int
    silent_ends: int
    lost: int
    repeated: int
    divergent: int
    max_gap_s: float
    from_the_small_tier: int

    @property
    def is_kept(self) -> bool:
        return not (self.lost or self.repeated or self.divergent or self.silent_ends)

    def line(self) -> str:
        return (
            f"{self.kills} kills in {self.process_kills} processes and {self.cuts} cuts, {self.answers} answers: "
            f"{self.whole} whole, {self.declared_failures} declared failed, {self.silent_ends} silent; "
            f"tokens lost {self.lost}, repeated {self.repeated}, divergent answers {self.divergent}; "
            f"longest gap {self.max_gap_s:.2f} s; {self.from_the_small_tier} from the small tier"
        )


async def run_kills(wanted: int, front: str, seed: int, say: Callable[[str], None]) -> KillReport:
    """Kills until `wanted` streams had their replica die under them."""
    plan = Plan(front, replicas=REPLICAS, more_config=_FAST_RECOVERY)
    async with running(plan) as fleet:
        stop = asyncio.Event()
        records: list[Record] = []
        streams = [
            asyncio.create_task(_keep_asking(fleet, number, seed, stop, records)) for number in range(STREAMS)
        ]
        hits: list[int] = []
        async for hit in _killings(fleet, random.Random(seed)):
            hits.append(hit)
            if len(hits) % 20 == 0:
                say(f"{sum(hits)} kills so far")
            if sum(hits) >= wanted:
                break
        stop.set()
        await asyncio.gather(*streams)
    report = _report(hits, records)
    say(report.line())
    return report


async def _killings(fleet: Fleet, rng: random.Random) -> AsyncIterator[int]:
    """Hits the replicas in turn at random moments, every second time by SIGKILL; yields the streams it hit."""
    await asyncio.sleep(2.0)
    for number in count():
        replica = fleet.replicas[number * 3 % len(fleet.replicas)]
        await asyncio.sleep(PAUSE_S * rng.uniform(0.5, 1.5))
        hit: int = (await replica.stats())["running"]
        await (_cut(replica, hit) if number % 2 else replica.restart())
        yield hit


async def _cut(replica: EngineProcess, streams: int) -> None:
    """Closes the connections of the streams that run, at the token where each is."""
    await replica.fault("cut", after_tokens=0, times=streams)
    await asyncio.sleep(CUT_S)
    await replica.fault("none")


async def _keep_asking(
    fleet: Fleet, number: int, seed: int, stop: asyncio.Event, records: list[Record]
) -> None:
    turn = 0
    while not stop.is_set():
        messages = ({"role": "user", "content": f"stream {number} turn {turn} of run {seed}"},)
        url = fleet.urls[(number + turn) % len(fleet.urls)]
        record = await ask(url, MODEL, Question(messages, TOKENS), asyncio.get_running_loop().time())
        records.append(record)
        turn += 1
        if record.status != 200:
            await asyncio.sleep(0.1)


def _report(hits: list[int], records: list[Record]) -> KillReport:
    differences = [record.difference() for record in records]
    declared = [record for record in records if record.is_declared_failure]
    whole = sum(record.is_whole for record in records)
    return KillReport(
        kills=sum(hits),
        process_kills=(len(hits) + 1) // 2,
        cuts=len(hits) // 2,
        answers=len(records),
        whole=whole,
        declared_failures=len(declared),
        silent_ends=len(records) - whole - len(declared),
        lost=sum(difference.lost for difference in differences),
        repeated=sum(difference.repeated for difference in differences),
        divergent=sum(difference.divergent > 0 for difference in differences),
        max_gap_s=max(record.max_gap_s for record in records),
        from_the_small_tier=sum("small" in record.models for record in records),
    )
