"""Restoring against recomputing, on two real vLLM servers and a Redis: by length, after a kill, and what it costs.

What is compared is measured in turn on the same engines, so that a machine that others use slows all of it alike.
"""

import asyncio
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from random import Random

from deploy.bench_kv_engines import Engine, ask, random_prompt
from deploy.bench_kv_kills import between_turns, in_a_stream
from deploy.bench_kv_rig import Bench, Found, Lengths, in_ms, running_bench
from deploy.http_server import free_ports

LENGTHS = (128, 256, 512, 1024, 2000)
LOAD_AT_ONCE, LOAD_PROMPT_TOKENS, LOAD_ANSWER_TOKENS = 4, 128, 48
OVERHEAD, SURE = 0.05, 0.9
SHORT_TOKENS = 64
PARTS = ("length", "turns", "killed", "stream", "cost")


async def by_length(bench: Bench, rounds: int) -> None:
    """A prompt's time to first token where it is new, restored, and warm; and whether that was the right choice."""
    one, other = bench.engines
    for tokens in LENGTHS:
        cold: list[float] = []
        restored: list[float] = []
        warm: list[float] = []
        for _ in range(rounds):
            prompt = random_prompt(bench.rng, tokens + 1)
            told = [await ask(bench.http, one.url, prompt, 8)]
            await bench.until_saved()
            told += [await ask(bench.http, other.url, prompt, 8) for _ in range(2)]
            bench.claim_same(told)
            for times, one_told in zip((cold, restored, warm), told, strict=True):
                times.append(one_told.ttft_s)
        bench.lengths.append(Lengths(tokens, cold, restored, warm))
        bench.say(
            f"  {tokens:>5} tokens: computed {in_ms(cold)}, restored {in_ms(restored)}, warm {in_ms(warm)}; "
            f"restoring was faster in {sum(r < c for r, c in zip(restored, cold, strict=True))} of {rounds}"
        )


async def next_turn(bench: Bench, rounds: int) -> None:
    """The next turn of a conversation: where it was, where its blocks are restored, where it is computed."""
    one, other = bench.engines
    warm: list[float] = []
    restored: list[float] = []
    computed: list[float] = []
    for _ in range(rounds):
        history = await bench.conversation(one.url)
        await bench.until_saved()
        asked = [*history, *bench.question()]
        # In other words where it was: its blocks would be in Redis, too, and less were left to compute.
        told = [await ask(bench.http, one.url, [*history, *bench.question()], 8)]
        # An engine that nobody asked for a while is slow to its first token, restored or warm; the other one has just answered.
        await ask(bench.http, other.url, random_prompt(bench.rng, SHORT_TOKENS), 2)
        told.append(await ask(bench.http, other.url, asked, 8))
        bench.claim_same([told[1], await ask(bench.http, one.url, asked, 8)])
        bench.forget_blocks()
        again = [*await bench.conversation(one.url), *bench.question()]
        await bench.until_saved()
        bench.forget_blocks()
        told.append(await ask(bench.http, other.url, again, 8))
        for times, one_told in zip((warm, restored, computed), told, strict=True):
            times.append(one_told.ttft_s)
    bench.say(
        f"  next turn after 1,200 tokens: warm {in_ms(warm)}, restored {in_ms(restored)}, computed {in_ms(computed)}"
    )
    bench.claim_as_warm(restored, warm, computed)


@dataclass(frozen=True, slots=True)
class Spent:
    """What one round of load took."""

    seconds: float
    engine_cpu_s: float
    redis_cpu_s: float

    @property
    def cpu_s(self) -> float:
        return self.engine_cpu_s + self.redis_cpu_s


async def overhead(bench: Bench, without: Engine, rounds: int) -> None:
    """What `replicate` costs without a fault: the same load with and without, in rounds next to each other in time.

    Which of the two goes first changes from round to round, so that a machine that gets busier favours neither.
    """
    keeping = bench.engines[0]
    pairs: list[tuple[Spent, Spent]] = []
    for number in range(rounds):
        prompts = [random_prompt(bench.rng, LOAD_PROMPT_TOKENS) for _ in range(LOAD_AT_ONCE)]
        order = (keeping, without) if number % 2 else (without, keeping)
        spent = {engine: await _round(bench, engine, prompts) for engine in order}
        pairs.append((spent[keeping], spent[without]))
    lost = [1 - plain.seconds / kept.seconds for kept, plain in pairs]
    low, high = interval(lost, Random(1))
    more_cpu = [kept.cpu_s / plain.engine_cpu_s - 1 for kept, plain in pairs]
    cpu_low, cpu_high = interval(more_cpu, Random(1))
    redis = sum(kept.redis_cpu_s for kept, _ in pairs) / sum(kept.cpu_s for kept, _ in pairs)
    bench.say(
        f"  throughput lost {statistics.median(lost):.1%} ({SURE:.0%} sure: {low:.1%} to {high:.1%}), CPU more "
        f"{statistics.median(more_cpu):.1%} ({cpu_low:.1%} to {cpu_high:.1%}), of which Redis {redis:.1%}; {rounds} rounds"
    )
    bench.claim(
        statistics.median(lost) <= OVERHEAD,
        f"replicate costs at most 5 % of the throughput ({statistics.median(lost):.1%}, median of rounds)",
    )


async def _round(bench: Bench, engine: Engine, prompts: list[list[int]]) -> Spent:
    loop, redis_begun, cpu_begun = asyncio.get_running_loop(), bench.redis_cpu_s(), engine.cpu_s()
    begun = loop.time()
    await asyncio.gather(*(ask(bench.http, engine.url, p, LOAD_ANSWER_TOKENS) for p in prompts))
    seconds = loop.time() - begun
    # What is written behind the answers belongs to them, too.
    await bench.until_saved()
    return Spent(seconds, engine.cpu_s() - cpu_begun, bench.redis_cpu_s() - redis_begun)


def interval(samples: list[float], rng: Random, draws: int = 2000) -> tuple[float, float]:
    """Between which medians the true one lies, as sure as `SURE`: by drawing from the samples again and again."""
    medians = sorted(statistics.median(rng.choices(samples, k=len(samples))) for _ in range(draws))
    cut = round((1 - SURE) / 2 * draws)
    return medians[cut], medians[-1 - cut]


async def run(model: Path, rounds: int, parts: Collection[str], say: Callable[[str], None]) -> Found:
    """Some of it, or all."""
    async with running_bench(model, say) as bench:
        if "length" in parts:
            say("restored and computed, by length")
            await by_length(bench, rounds)
        if "turns" in parts:
            say("between turns, both replicas alive")
            await next_turn(bench, rounds)
        if "killed" in parts:
            say("killed between turns, behind a gateway")
            await between_turns(bench, rounds)
        if "stream" in parts:
            say("killed in the middle of a stream, behind a gateway")
            await in_a_stream(bench, max(1, rounds // 3))
        if "cost" in parts:
            say("cost without a fault")
            await _cost(bench, 5 * rounds)
        return Found(tuple(bench.lengths), tuple(bench.verdicts))


async def _cost(bench: Bench, rounds: int) -> None:
    await bench.engines[1].stop()
    without = Engine(bench.model, free_ports(1)[0], bench.folder / "without.log")
    try:
        await without.start()
        await overhead(bench, without, rounds)
    finally:
        await without.stop()
