"""What keeping blocks costs without a fault: one engine that keeps those of some rounds of load and not those of others.

Two engines differ by themselves, by their memory and the cores that they got, by more than is to be measured. One engine
that is told with each request whether to keep its blocks has both on the same ground; and rounds of the same kind against
each other tell how much the comparison can tell at all.
"""

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from deploy.bench_kv_engines import Engine, ask, random_prompt
from deploy.bench_kv_rig import Bench
from state_store.kv.turn import KEEP

LOAD_AT_ONCE, LOAD_PROMPT_TOKENS, LOAD_ANSWER_TOKENS = 4, 96, 40
"""Short rounds: many of them tell more than a few long ones on a machine that others use."""
OVERHEAD, SURE = 0.05, 0.9
SAVE_CPU = "graceway_kv_save_cpu_seconds_total"
KEPT, PLAIN, PLAIN_AGAIN = "kept", "plain", "plain again"


@dataclass(frozen=True, slots=True)
class Spent:
    """What one round of load took."""

    seconds: float
    engine_cpu_s: float
    redis_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.engine_cpu_s + self.redis_cpu_s


@dataclass(frozen=True, slots=True)
class Three:
    """Rounds next to each other in time: one that keeps its blocks, and two that don't."""

    kept: Spent
    plain: Spent
    plain_again: Spent


async def overhead(bench: Bench, rounds: int) -> None:
    """What `replicate` costs: the same load with and without. The order changes from round to round."""
    engine = bench.engines[0]
    before = await engine.metrics(bench.http)
    threes = [await _three(bench, engine) for _ in range(rounds)]
    after = await engine.metrics(bench.http)
    lost = [1 - _mean(t.plain.seconds, t.plain_again.seconds) / t.kept.seconds for t in threes]
    more_cpu = [t.kept.cpu_s / _mean(t.plain.cpu_s, t.plain_again.cpu_s) - 1 for t in threes]
    kept_cpu_s = sum(t.kept.cpu_s for t in threes)
    redis = sum(t.kept.redis_cpu_s for t in threes) / kept_cpu_s
    saving = (after[SAVE_CPU] - before[SAVE_CPU]) / kept_cpu_s
    bench.say(f"  throughput lost {told(lost)}, CPU more {told(more_cpu)}; {rounds} rounds")
    bench.say(f"  of the CPU, the thread that saves had {saving:.1%}, Redis {redis:.1%}")
    noise = [1 - t.plain.seconds / t.plain_again.seconds for t in threes]
    noise_cpu = [t.plain_again.cpu_s / t.plain.cpu_s - 1 for t in threes]
    bench.say(f"  two rounds without it: throughput lost {told(noise)}, CPU more {told(noise_cpu)}")
    bench.claim(
        statistics.median(lost) <= OVERHEAD,
        f"replicate costs at most 5 % of the throughput ({statistics.median(lost):.1%}, median of {rounds} rounds)",
    )


async def _three(bench: Bench, engine: Engine) -> Three:
    order = bench.rng.sample((KEPT, PLAIN, PLAIN_AGAIN), 3)
    spent = {name: await _round(bench, engine, name == KEPT) for name in order}
    return Three(spent[KEPT], spent[PLAIN], spent[PLAIN_AGAIN])


async def _round(bench: Bench, engine: Engine, is_kept: bool) -> Spent:
    loop, redis_begun, cpu_begun = asyncio.get_running_loop(), bench.redis_cpu_s(), engine.cpu_s()
    prompts = [random_prompt(bench.rng, LOAD_PROMPT_TOKENS) for _ in range(LOAD_AT_ONCE)]
    extra = {} if is_kept else {"kv_transfer_params": {KEEP: False}}
    begun = loop.time()
    await asyncio.gather(*(ask(bench.http, engine.url, p, LOAD_ANSWER_TOKENS, extra=extra) for p in prompts))
    seconds = loop.time() - begun
    if is_kept:
        # What is written behind the answers belongs to them, too.
        await bench.until_saved()
    return Spent(seconds, engine.cpu_s() - cpu_begun, bench.redis_cpu_s() - redis_begun)


def told(shares: Sequence[float]) -> str:
    """Their median, and how sure that is."""
    low, high = interval(shares, Random(1))
    return f"{statistics.median(shares):.1%} ({SURE:.0%} sure: {low:.1%} to {high:.1%})"


def interval(samples: Sequence[float], rng: Random, draws: int = 2000) -> tuple[float, float]:
    """Between which medians the true one lies, as sure as `SURE`: by drawing from the samples again and again."""
    medians = sorted(statistics.median(rng.choices(samples, k=len(samples))) for _ in range(draws))
    cut = round((1 - SURE) / 2 * draws)
    return medians[cut], medians[-1 - cut]


def _mean(one: float, other: float) -> float:
    return (one + other) / 2
