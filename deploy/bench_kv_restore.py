"""Restoring against recomputing, on two real vLLM servers and a Redis: by length, after a kill, and what it costs.

What is compared is measured in turn on the same engines, so that a machine that others use slows all of it alike.
"""

import asyncio
import socket
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
from redis import Redis

from deploy.bench_kv_engines import Engine, Told, ask, random_prompt
from deploy.bench_kv_gateway import running_gateway
from replicas.engine_load import parse_load
from replicas.kv.settings import KvSettings
from state_store.embedded import EmbeddedRedis

LENGTHS = (128, 256, 512, 1024, 2000)
CONVERSATION_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 1200, 48, 64
LOAD_AT_ONCE, LOAD_PROMPT_TOKENS, LOAD_ANSWER_TOKENS = 4, 256, 96
WARM_RATIO, RECOMPUTE_RATIO, OVERHEAD = 1.3, 1 / 3, 0.05
BUDGET_BYTES = 1 << 30
"""More than the bench writes: nothing is missed for want of room."""
_REPLICATE = KvSettings("replicate", BUDGET_BYTES)


@dataclass(slots=True)
class Bench:
    """Two engines and the Redis that has their blocks."""

    engines: tuple[Engine, Engine]
    redis: Redis
    http: aiohttp.ClientSession
    folder: Path
    say: Callable[[str], None]
    rng: Random = field(default_factory=lambda: Random(1))
    verdicts: list[bool] = field(default_factory=list)

    def claim(self, holds: bool, text: str) -> None:
        self.verdicts.append(holds)
        self.say(f"  {'holds ' if holds else 'FAILS '} {text}")

    async def until_saved(self) -> None:
        """Returns when no more blocks come in."""
        before = -1
        while before != (now := self.redis.dbsize()):
            before = now
            await asyncio.sleep(0.5)

    def forget_blocks(self) -> None:
        for key in self.redis.scan_iter(b"graceway:*kv*", count=1000):
            self.redis.unlink(key)

    async def by_length(self, rounds: int) -> None:
        """A prompt's time to first token where it is new, restored, and warm; and whether that was the right choice."""
        one, other = self.engines
        for tokens in LENGTHS:
            cold: list[float] = []
            restored: list[float] = []
            warm: list[float] = []
            for _ in range(rounds):
                prompt = random_prompt(self.rng, tokens + 1)
                told = [await ask(self.http, one.url, prompt, 8)]
                await self.until_saved()
                told += [await ask(self.http, other.url, prompt, 8) for _ in range(2)]
                self.claim_same(told)
                for times, one_told in zip((cold, restored, warm), told, strict=True):
                    times.append(one_told.ttft_s)
            self.say(
                f"  {tokens:>5} tokens: computed {_ms(cold)}, restored {_ms(restored)}, warm {_ms(warm)}; "
                f"restoring was faster in {sum(r < c for r, c in zip(restored, cold, strict=True))} of {rounds}"
            )

    def claim_same(self, told: list[Told]) -> None:
        if len({one.ids for one in told}) != 1:
            self.claim(False, "the same tokens, however the prompt got into the cache")

    async def next_turn(self, rounds: int) -> None:
        """The next turn of a conversation: where it was, where its blocks are restored, where it is computed."""
        one, other = self.engines
        warm: list[float] = []
        restored: list[float] = []
        computed: list[float] = []
        for _ in range(rounds):
            history = await self._conversation(one.url)
            await self.until_saved()
            told = [await ask(self.http, url, history, 8) for url in (one.url, other.url)]
            self.forget_blocks()
            again = await self._conversation(one.url)
            await self.until_saved()
            self.forget_blocks()
            told.append(await ask(self.http, other.url, again, 8))
            self.claim_same(told[:2])
            for times, one_told in zip((warm, restored, computed), told, strict=True):
                times.append(one_told.ttft_s)
        self.say(
            f"  next turn after 1,200 tokens: warm {_ms(warm)}, restored {_ms(restored)}, computed {_ms(computed)}"
        )
        by_warm = _median(restored) / _median(warm)
        by_computed = _median(restored) / _median(computed)
        self.claim(by_warm <= WARM_RATIO, f"restored at most 1.3 times warm ({by_warm:.2f})")
        self.claim(
            by_computed <= RECOMPUTE_RATIO, f"restored at most a third of computed ({by_computed:.2f})"
        )

    async def _conversation(self, url: str) -> list[int]:
        """All that was said in a first turn, and the question of a second."""
        prompt = random_prompt(self.rng, CONVERSATION_TOKENS - ANSWER_TOKENS)
        told = await ask(self.http, url, prompt, ANSWER_TOKENS)
        return [*prompt, *told.ids, *random_prompt(self.rng, TURN_TOKENS)]

    async def killed_in_a_stream(self) -> None:
        """The gap that a client sees when its replica dies, with its blocks in Redis and without."""
        gaps = {}
        async with running_gateway([engine.url for engine in self.engines], self.folder) as gateway:
            for name in ("replicate", "recompute"):
                prompt = random_prompt(self.rng, CONVERSATION_TOKENS)
                told = await self._killed(gateway, prompt, name)
                gaps[name] = told.longest_gap_s
                undisturbed = await ask(self.http, self.engines[0].url, prompt, ANSWER_TOKENS)
                self.claim_same([told, undisturbed])
        ratio = gaps["replicate"] / gaps["recompute"]
        self.say(f"  gap: replicate {gaps['replicate']:.2f} s, recompute {gaps['recompute']:.2f} s")
        self.claim(ratio <= RECOMPUTE_RATIO, f"the gap is at most a third of recomputing ({ratio:.2f})")

    async def _killed(self, gateway: str, prompt: list[int], strategy: str) -> Told:
        """A stream whose replica is killed after half of its answer, and started again afterwards."""
        has_begun = asyncio.Event()
        asking = asyncio.create_task(
            ask(self.http, gateway, prompt, ANSWER_TOKENS, model="chat", begun=has_begun)
        )
        await has_begun.wait()
        victim = await self._busy()
        await self.until_saved()
        if strategy == "recompute":
            self.forget_blocks()
        await victim.kill()
        told = await asking
        await victim.start()
        return told

    async def _busy(self) -> Engine:
        """The engine that is answering."""
        for engine in self.engines:
            async with self.http.get(engine.url + "/metrics") as answer:
                load = parse_load(await answer.text(), 0.0)
            if load is not None and load.running:
                return engine
        raise RuntimeError("the answer was over before its replica was found")


async def overhead(bench: Bench, without: Engine, rounds: int) -> None:
    """What `replicate` costs without a fault: tokens per second, and CPU seconds, of the same load with and without."""
    rates: dict[Engine, list[float]] = {bench.engines[0]: [], without: []}
    cpu: dict[Engine, float] = dict.fromkeys(rates, 0.0)
    for _ in range(rounds):
        for engine in rates:
            prompts = [random_prompt(bench.rng, LOAD_PROMPT_TOKENS) for _ in range(LOAD_AT_ONCE)]
            begun, cpu_begun = asyncio.get_running_loop().time(), engine.cpu_s()
            await asyncio.gather(*(ask(bench.http, engine.url, p, LOAD_ANSWER_TOKENS) for p in prompts))
            tokens = LOAD_AT_ONCE * LOAD_ANSWER_TOKENS
            rates[engine].append(tokens / (asyncio.get_running_loop().time() - begun))
            cpu[engine] += engine.cpu_s() - cpu_begun
    with_kv, plain = (rates[engine] for engine in rates)
    # Round by round, as those are next to each other in time.
    lost = 1 - statistics.median(a / b for a, b in zip(with_kv, plain, strict=True))
    more_cpu = cpu[bench.engines[0]] / cpu[without] - 1
    bench.say(
        f"  replicate {statistics.median(with_kv):.1f} tokens/s, recompute {statistics.median(plain):.1f} tokens/s; "
        f"CPU {more_cpu:+.1%}"
    )
    bench.claim(
        lost <= OVERHEAD, f"replicate costs at most 5 % of the throughput ({lost:.1%}, median of rounds)"
    )


async def run(model: Path, rounds: int, say: Callable[[str], None]) -> bool:
    """All of it; whether all that is claimed was seen."""
    async with _bench(model, say) as bench:
        say("restored and computed, by length")
        await bench.by_length(rounds)
        say("between turns")
        await bench.next_turn(rounds)
        say("killed in the middle of a stream")
        await bench.killed_in_a_stream()
        say("cost without a fault")
        await bench.engines[1].stop()
        without = Engine(model, _free_port(), bench.folder / "without.log")
        try:
            await without.start()
            await overhead(bench, without, 2 * rounds)
        finally:
            await without.stop()
        return all(bench.verdicts)


@asynccontextmanager
async def _bench(model: Path, say: Callable[[str], None]) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graceway-bench-")))
        redis = EmbeddedRedis(maxmemory_bytes=2 * BUDGET_BYTES)
        await redis.start()
        stack.push_async_callback(redis.stop)
        engines = (
            Engine(model, _free_port(), folder / "one.log", _REPLICATE, redis.url),
            Engine(model, _free_port(), folder / "other.log", _REPLICATE, redis.url),
        )
        for engine in engines:
            # One after the other: two at once compete for the cores, and take longer than twice as long.
            stack.push_async_callback(engine.stop)
            await engine.start()
        client = Redis.from_url(redis.url)
        stack.callback(client.close)
        timeout = aiohttp.ClientTimeout(total=600)
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
        for engine in engines:
            await ask(http, engine.url, random_prompt(Random(0), 300), 4)
        yield Bench(engines, client, http, folder, say)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _median(times: list[float]) -> float:
    return statistics.median(times)


def _ms(times: list[float]) -> str:
    return f"{_median(times) * 1000:.0f} ms (best {min(times) * 1000:.0f})"
