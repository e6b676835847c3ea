"""A soak: hours of load with random faults, after which nothing may have grown and every count is back to zero.

`python -m loadtests.soak --minutes 60`. Looks at the gateway's memory, file descriptors and tasks every few seconds,
and at the end at what gateway and engines still count as running. Exit status: 0 nothing leaked and no answer was
wrong, 1 otherwise.
"""

import argparse
import asyncio
import random
import sys
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp
import orjson
import psutil

from loadtests.client import Question, Record, ask, complaint
from loadtests.drill_plan import QUICK_HEALTH, Mix
from loadtests.drill_run import scraped
from loadtests.ending import run_to_end
from loadtests.fleet import MODEL, Fleet, Plan, running
from loadtests.judgement import judged
from loadtests.leaks import Growth, growth
from loadtests.soak_faults import draw

PLAN = Plan(replicas=3, has_store=True, more_config=QUICK_HEALTH)
SMALL = replace(
    PLAN,
    more_config=QUICK_HEALTH + "routing: {prefix_budget_bytes: 262144}\n",
    store_arguments=("--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru"),
)
"""Budgets that are used up within the first minute: sessions are new every few turns, and prompts long and never the same."""
TURNS_OF_SMALL, LONG_PROMPT = 4, 60
PRIORITIES = {"critical": 0.2, "standard": 0.6, "sheddable": 0.2}
SAMPLE_S = 2.0
REST_WITHIN_S = 20.0
ANSWER_WITHIN_S = 30.0
TASKS = "graceway_tasks"
USED, USED_RSS = b"used_memory", b"used_memory_rss"
RSS_MORE_BYTES, RSS_SHARE = 15e6, 0.1
STORE_MORE_BYTES, STORE_SHARE = 1e6, 0.2
FDS_MORE, TASKS_MORE = 48, 40
"""What may come and go with the load of a moment: connections that are kept, streams that run."""
WHOLE_SHARE = 0.98
KEPT, LOG_LINES = 50, 2000


@dataclass(frozen=True, slots=True)
class Sample:
    """The gateway at one moment."""

    at_s: float
    rss_bytes: float
    fds: float
    tasks: float
    store_bytes: float = 0.0
    """What the state store says that it uses; the last it said, while it is away."""
    store_rss_bytes: float = 0.0
    """What its process has of the machine's memory, as it says."""


@dataclass(slots=True)
class Tally:
    """What became of the requests. Records are not kept: a soak that grows itself finds leaks everywhere."""

    begun_at: float
    judgements: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    repeated: int = 0
    complaints: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=KEPT))

    def take(self, record: Record) -> None:
        judgement = judged(record, "tokens")
        self.judgements[f"{judgement.kind} {judgement.why}".strip()] += 1
        if judgement.is_failed:
            difference = record.difference()
            self.lost += difference.lost
            self.repeated += difference.repeated
            self.complaints.append({"why": judgement.why, **complaint(record, self.begun_at)})

    @property
    def whole_share(self) -> float:
        """Of those whose client stayed and that were not refused as declared."""
        counted = {k: n for k, n in self.judgements.items() if k != "left" and not k.startswith("shed")}
        return self.judgements["whole"] / max(sum(counted.values()), 1)


@dataclass(frozen=True, slots=True)
class Report:
    """What the soak found."""

    minutes: float
    judgements: dict[str, int]
    faults: dict[str, int]
    rss_bytes: Growth
    fds: Growth
    tasks: Growth
    store_bytes: Growth
    store_rss_bytes: Growth
    at_rest: dict[str, float]
    misses: list[str]
    complaints: list[dict[str, object]]
    """The last requests that failed."""
    log: list[str]
    """The gateway's last words."""

    def text(self) -> str:
        return "\n".join(
            [
                f"{self.minutes:.1f} minutes, answers: {_counts(self.judgements)}",
                f"faults: {_counts(self.faults)}",
                f"memory of the gateway {_in_mb(self.rss_bytes)}, of the store {_in_mb(self.store_rss_bytes)}, "
                f"of which in use {_in_mb(self.store_bytes)}",
                f"descriptors {self.fds.begins:g} → {self.fds.ends:g}, "
                f"tasks {self.tasks.begins:g} → {self.tasks.ends:g}",
                f"at rest: {', '.join(f'{name} {value:g}' for name, value in self.at_rest.items())}",
                *self.misses,
                "leaks or losses were found" if self.misses else "nothing leaked",
            ]
        )


def _in_mb(grown: Growth) -> str:
    return f"{grown.begins / 1e6:.1f} → {grown.ends / 1e6:.1f} MB ({grown.per_hour / 1e6:+.1f} MB/h)"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


async def soak(
    minutes: float, rate_per_s: float, seed: int, has_small_budget: bool = False
) -> tuple[Report, list[Sample]]:
    """The whole of it, on a fleet of its own."""
    async with running(SMALL if has_small_budget else PLAN) as fleet, aiohttp.ClientSession() as http:
        samples = [await _sample(http, fleet, 0.0)]
        begun_at = asyncio.get_running_loop().time()
        tally = Tally(begun_at)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_watch(http, fleet, begun_at, samples))
            breaking = group.create_task(_break(fleet, random.Random(seed), tally))
            rng = random.Random(-seed)
            await _load(fleet, minutes * 60, rate_per_s, rng, tally, has_small_budget)
            breaking.cancel()
            watching.cancel()
        at_rest = await _at_rest(http, fleet)
        last = await _sample(http, fleet, asyncio.get_running_loop().time() - begun_at)
        log = fleet.fronts[0].output[-LOG_LINES:]
        return _report(minutes, tally, samples, samples[0], last, at_rest, log), samples


async def _load(
    fleet: Fleet, seconds: float, rate_per_s: float, rng: random.Random, tally: Tally, has_small_budget: bool
) -> None:
    """Open-loop, with every tenth client leaving, and a burst now and then."""
    loop = asyncio.get_running_loop()
    until, number = loop.time() + seconds, 0
    async with asyncio.TaskGroup() as group:
        while loop.time() < until:
            for _ in range(20 if rng.random() < 0.01 else 1):
                number += 1
                mix = Mix(tokens=rng.randint(5, 80), leaving_share=0.1, priorities=PRIORITIES)
                question = mix.question(rng, f"{number}")
                if has_small_budget:
                    question = _filling(question, number)
                group.create_task(_ask(fleet, question, tally))
            await asyncio.sleep(rng.expovariate(rate_per_s))


def _filling(question: Question, number: int) -> Question:
    """The same with a session of few turns, and a prompt of its own that is long enough to be known by its beginning."""
    content = " ".join(f"question {number} again, number {n};" for n in range(LONG_PROMPT))
    headers = {**question.headers, "x-session-id": f"session {number // TURNS_OF_SMALL}"}
    return replace(question, messages=({"role": "user", "content": content},), headers=headers)


async def _ask(fleet: Fleet, question: Question, tally: Tally) -> None:
    now = asyncio.get_running_loop().time()
    tally.take(await ask(fleet.urls[0], MODEL, question, now, ANSWER_WITHIN_S))


async def _break(fleet: Fleet, rng: random.Random, tally: Tally) -> None:
    """For ever, one fault after the other; the last one is healed, too."""
    while True:
        await asyncio.sleep(rng.uniform(1.0, 5.0))
        fault = draw(rng, fleet)
        tally.faults[fault.name] += 1
        try:
            await fault.act(fleet)
            await asyncio.sleep(rng.uniform(1.0, 6.0))
        finally:
            await fault.heal(fleet)


async def _watch(http: aiohttp.ClientSession, fleet: Fleet, begun_at: float, samples: list[Sample]) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        at_s = asyncio.get_running_loop().time() - begun_at
        samples.append(await _sample(http, fleet, at_s, samples[-1]))


async def _sample(
    http: aiohttp.ClientSession, fleet: Fleet, at_s: float, before: Sample | None = None
) -> Sample:
    process = psutil.Process(fleet.fronts[0].pid)
    metrics = await scraped(http, fleet.urls[0]) or {}
    store = await _store_memory(fleet)
    if not store and before is not None:
        store = {USED: before.store_bytes, USED_RSS: before.store_rss_bytes}
    own = process.memory_info().rss, process.num_fds(), metrics.get(TASKS, 0.0)
    return Sample(at_s, *own, store.get(USED, 0.0), store.get(USED_RSS, 0.0))


async def _store_memory(fleet: Fleet) -> dict[bytes, float]:
    """Bytes by Redis's own names; empty while it does not answer."""
    assert fleet.store is not None
    said = await fleet.store.ask("INFO", "memory") if fleet.store.is_running else b""
    pairs = (line.split(b":", 1) for line in said.split(b"\r\n") if b":" in line)
    return {name: float(value) for name, value in pairs if name in (USED, USED_RSS)}


async def _at_rest(http: aiohttp.ClientSession, fleet: Fleet) -> dict[str, float]:
    """What is still counted once all clients are done: the least that is seen within a while."""
    loop = asyncio.get_running_loop()
    until = loop.time() + REST_WITHIN_S
    while True:
        counts = await _counts_at_rest(http, fleet)
        if not any(counts.values()) or loop.time() > until:
            return counts
        await asyncio.sleep(0.2)


async def _counts_at_rest(http: aiohttp.ClientSession, fleet: Fleet) -> dict[str, float]:
    async with http.get(f"{fleet.urls[0]}/status") as response:
        status = await response.json()
    tiers = [tier for model in status["models"].values() for tier in model["tiers"]]
    stats = await asyncio.gather(*(engine.stats() for engine in fleet.engines()))
    return {
        "in flight at the gateway": sum(r["in_flight"] for tier in tiers for r in tier["replicas"]),
        "waiting at the gateway": sum(tier["waiting"] for tier in tiers),
        "running at the engines": sum(one["running"] for one in stats),
        "waiting at the engines": sum(one["waiting"] for one in stats),
    }


def _report(
    minutes: float,
    tally: Tally,
    samples: list[Sample],
    first: Sample,
    last: Sample,
    at_rest: dict[str, float],
    log: list[str],
) -> Report:
    rss = growth([(s.at_s, s.rss_bytes) for s in samples])
    fds = growth([(s.at_s, s.fds) for s in samples])
    tasks = growth([(s.at_s, s.tasks) for s in samples])
    store = growth([(s.at_s, s.store_bytes) for s in samples])
    store_rss = growth([(s.at_s, s.store_rss_bytes) for s in samples])
    found = {
        "the store's memory grows": store.is_leak(STORE_MORE_BYTES, STORE_SHARE)
        or store_rss.is_leak(RSS_MORE_BYTES, RSS_SHARE),
        "memory grows": rss.is_leak(RSS_MORE_BYTES, RSS_SHARE),
        "file descriptors grow": fds.is_leak(FDS_MORE, 0.5),
        "tasks grow": tasks.is_leak(TASKS_MORE, 0.5),
        f"{last.fds:g} descriptors at rest, {first.fds:g} before": last.fds > first.fds + FDS_MORE,
        f"{last.tasks:g} tasks at rest, {first.tasks:g} before": last.tasks > first.tasks + TASKS_MORE,
        "something is still counted at rest": any(at_rest.values()),
        f"{tally.lost} tokens lost, {tally.repeated} repeated": bool(tally.lost or tally.repeated),
        "wrong answers": bool(tally.judgements["failed divergent"]),
        "answers that just stop": bool(
            tally.judgements["failed silent end"] + tally.judgements["failed cut"]
        ),
        f"only {tally.whole_share:.1%} whole, wanted {WHOLE_SHARE:.0%}": tally.whole_share < WHOLE_SHARE,
    }
    misses = [what for what, is_found in found.items() if is_found]
    judgements, faults = dict(tally.judgements.most_common()), dict(tally.faults.most_common())
    more = {
        "descriptors (before)": first.fds,
        "descriptors": last.fds,
        "tasks (before)": first.tasks,
        "tasks": last.tasks,
    }
    return Report(
        minutes,
        judgements,
        faults,
        rss,
        fds,
        tasks,
        store,
        store_rss,
        at_rest | more,
        misses,
        list(tally.complaints),
        log,
    )


async def _run(arguments: argparse.Namespace) -> int:
    report, samples = await soak(arguments.minutes, arguments.rate, arguments.seed, arguments.small_budget)
    sys.stdout.write(report.text() + "\n")
    if arguments.json:
        content = {"report": report, "samples": samples}
        arguments.json.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    return 1 if report.misses else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--small-budget",
        action="store_true",
        help="little memory for prefixes and in Redis, and sessions and prompts that fill it",
    )
    parser.add_argument("--json", type=Path, help="writes the report and all samples there")
    return parser


def main() -> None:
    sys.exit(run_to_end(_run(_parser().parse_args())))


if __name__ == "__main__":
    main()
