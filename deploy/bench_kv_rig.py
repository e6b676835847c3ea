"""What the benches of KV blocks stand on: two real vLLM servers, the Redis that has their blocks, and what is claimed of them."""

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import aiohttp
from redis import Redis

from deploy.bench_kv_engines import Engine, Told, ask, random_prompt
from deploy.http_server import free_ports
from replicas.kv.settings import KvSettings
from state_store.embedded import EmbeddedRedis
from state_store.kv.block_format import BLOCK_KEYS

CONVERSATION_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 1200, 48, 64
WARM_RATIO, RECOMPUTE_RATIO = 1.3, 1 / 3
BUDGET_BYTES = 1 << 30
"""More than a bench writes: nothing is missed for want of room."""
_REPLICATE = KvSettings("replicate", BUDGET_BYTES)
_USED = _REPLICATE.budget.used


@dataclass(frozen=True, slots=True)
class Verdict:
    """Something claimed, and whether it was seen."""

    holds: bool
    text: str


@dataclass(frozen=True, slots=True)
class Lengths:
    """Seconds to the first token of prompts of one length, round by round."""

    tokens: int
    computed: list[float]
    restored: list[float]
    warm: list[float]


@dataclass(frozen=True, slots=True)
class Found:
    """All that a bench measured and claimed."""

    lengths: tuple[Lengths, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)


@dataclass(slots=True)
class Bench:
    """Two engines and the Redis that has their blocks."""

    engines: tuple[Engine, Engine]
    redis: Redis
    redis_url: str
    http: aiohttp.ClientSession
    model: Path
    folder: Path
    say: Callable[[str], None]
    rng: Random = field(default_factory=lambda: Random(1))
    verdicts: list[Verdict] = field(default_factory=list)
    lengths: list[Lengths] = field(default_factory=list)

    def claim(self, holds: bool, text: str) -> None:
        self.verdicts.append(Verdict(holds, text))
        self.say(f"  {'holds ' if holds else 'FAILS '} {text}")

    def claim_same(self, told: Sequence[Told]) -> None:
        if len({one.ids for one in told}) != 1:
            self.claim(False, "the same tokens, however the prompt got into the cache")

    def claim_restored(self, restored: list[float], computed: list[float]) -> None:
        """What is wanted of a restored turn's time to first token."""
        ratio = median(restored) / median(computed)
        self.claim(ratio <= RECOMPUTE_RATIO, f"restored at most a third of computed ({ratio:.2f})")

    def claim_as_warm(self, restored: list[float], warm: list[float]) -> None:
        """What is wanted beside that where the replica of the conversation is lost."""
        ratio = median(restored) / median(warm)
        self.claim(ratio <= WARM_RATIO, f"restored at most 1.3 times warm ({ratio:.2f})")

    async def until_saved(self) -> None:
        """Returns when no more blocks come in."""
        before = -1
        while before != (now := self.redis.zcard(_USED)):
            before = now
            await asyncio.sleep(0.5)

    def forget_blocks(self) -> None:
        for key in self.redis.scan_iter(b"graceway:*kv*", count=1000):
            self.redis.unlink(key)

    def block_bytes(self) -> int:
        """Of a block in Redis, the middle one by size."""
        keys = self.redis.scan_iter(BLOCK_KEYS, count=1000)
        return int(statistics.median_low([self.redis.strlen(key) for key in keys]))

    def redis_cpu_s(self) -> float:
        """CPU seconds of Redis up to now."""
        said = self.redis.info("cpu")
        return float(said["used_cpu_user"]) + float(said["used_cpu_sys"])

    async def conversation(self, url: str) -> list[int]:
        """All that was said in a first turn."""
        prompt = random_prompt(self.rng, CONVERSATION_TOKENS - ANSWER_TOKENS)
        return [*prompt, *(await ask(self.http, url, prompt, ANSWER_TOKENS)).ids]

    def question(self) -> list[int]:
        return random_prompt(self.rng, TURN_TOKENS)


@asynccontextmanager
async def running_bench(
    model: Path, say: Callable[[str], None], settings: KvSettings = _REPLICATE
) -> AsyncIterator[Bench]:
    """Starts everything, and leaves nothing of it behind."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graceway-bench-")))
        redis = EmbeddedRedis(maxmemory_bytes=2 * BUDGET_BYTES)
        await redis.start()
        stack.push_async_callback(redis.stop)
        ports = free_ports(2)
        engines = (
            Engine(model, ports[0], folder / "one.log", settings, redis.url),
            Engine(model, ports[1], folder / "other.log", settings, redis.url),
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
        yield Bench(engines, client, redis.url, http, model, folder, say)


def median(times: list[float]) -> float:
    return statistics.median(times)


def in_ms(times: list[float]) -> str:
    return f"{median(times) * 1000:.0f} ms (best {min(times) * 1000:.0f})"
