"""Restoring against recomputing, on two real vLLM servers and a Redis: by length, after a kill, and what it costs.

What is compared is measured in turn on the same engines, so that a machine that others use slows all of it alike.
"""

from collections.abc import Callable, Collection
from pathlib import Path

from deploy.bench_kv_cost import overhead
from deploy.bench_kv_engines import ask, random_prompt
from deploy.bench_kv_kills import between_turns, in_a_stream, phases, spent_in
from deploy.bench_kv_rig import Bench, Found, Lengths, in_ms, median, running_bench

LENGTHS = (128, 256, 512, 1024, 2000)
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
    warm: list[float] = []
    restored: list[float] = []
    computed: list[float] = []
    for number in range(rounds):
        # Two engines are never equally fast: each has both parts in turn.
        one, other = bench.engines if number % 2 else bench.engines[::-1]
        history = await bench.conversation(one.url)
        await bench.until_saved()
        asked = [*history, *bench.question()]
        # An engine that nobody asked for a while is slow to its first token: each has just answered something else.
        await ask(bench.http, one.url, random_prompt(bench.rng, SHORT_TOKENS), 2)
        # In other words where it was: its blocks would be in Redis, too, and less were left to compute.
        told = [await ask(bench.http, one.url, [*history, *bench.question()], 8)]
        await ask(bench.http, other.url, random_prompt(bench.rng, SHORT_TOKENS), 2)
        before = await phases(bench, other)
        told.append(await ask(bench.http, other.url, asked, 8))
        stages = spent_in(before, await phases(bench, other))
        bench.say(f"  warm {told[0].ttft_s * 1e3:.0f} ms, restored {told[1].ttft_s * 1e3:.0f} ms: {stages}")
        bench.claim_same([told[1], await ask(bench.http, one.url, asked, 8)])
        bench.forget_blocks()
        again = [*await bench.conversation(one.url), *bench.question()]
        await bench.until_saved()
        bench.forget_blocks()
        told.append(await ask(bench.http, other.url, again, 8))
        for times, one_told in zip((warm, restored, computed), told, strict=True):
            times.append(one_told.ttft_s)
    bench.say(
        f"  next turn after 1,200 tokens: warm {in_ms(warm)}, restored {in_ms(restored)} "
        f"({median(restored) / median(warm):.2f} times), computed {in_ms(computed)}"
    )
    bench.claim_restored(restored, computed)


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
            await overhead(bench, 5 * rounds)
        return Found(tuple(bench.lengths), tuple(bench.verdicts))
