"""KV blocks of one vLLM restored by another, while somebody deletes, cuts and changes them: what is said stays the same."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from random import Random

import aiohttp
import pytest
from redis import Redis

from deploy.bench_kv_engines import Engine, ask, random_prompt
from replicas.kv.settings import CONNECTOR, MODULE, KvSettings, connector, transfer
from state_store.embedded import EmbeddedRedis
from tests.rig import free_port

MODEL = Path(__file__).parents[2] / "models" / "smollm2-135m"
SETTINGS = KvSettings("replicate", budget_bytes=1 << 30)
PROMPTS, PROMPT_TOKENS, TOKENS = 8, 700, 24
SPOILT, VANDAL_EVERY_S = 0.08, 0.1
VANDAL_WAYS = (*["cut", "flip", "swap"] * 4, "delete")
"""Mostly what only loading shows: of a prefix whose beginning is gone, nothing is loaded at all."""
BLOCK_BYTES = 1_474_560
"""Of 32 tokens of the model, in float32."""
PARTS = ("VLLM::EngineC", "VLLM::Worker")
"""Of vLLM: what plans its steps, and what computes them."""


@pytest.fixture
async def redis() -> AsyncIterator[EmbeddedRedis]:
    server = EmbeddedRedis(maxmemory_bytes=2 << 30)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def pair(redis: EmbeddedRedis, tmp_path: Path) -> AsyncIterator[tuple[Engine, Engine]]:
    one, other = (Engine(MODEL, free_port(), tmp_path / f"{name}.log", SETTINGS, redis.url) for name in "ab")
    try:
        await one.start()
        await other.start()
        yield one, other
    finally:
        await one.stop()
        await other.stop()


def spoil(redis: Redis, key: bytes, other: bytes, rng: Random, ways: tuple[str, ...]) -> None:
    value, how = redis.get(key), rng.choice(ways)
    if not isinstance(value, bytes) or not value:
        return
    if how == "delete":
        redis.delete(key)
    elif how == "cut":
        redis.set(key, value[: rng.randrange(len(value))])
    elif how == "swap":
        redis.set(key, redis.get(other) or b"")
    else:
        at = rng.randrange(len(value))
        redis.set(key, value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + value[at + 1 :])


def spoil_some(url: str, rng: Random) -> None:
    """Damages some blocks in ways that only their content shows, so that they are loaded all the same."""
    with Redis.from_url(url) as redis:
        keys = sorted(redis.scan_iter(b"graceway:kv:*", count=1000))
        for key in rng.sample(keys, round(SPOILT * len(keys))):
            spoil(redis, key, rng.choice(keys), rng, ("cut", "flip", "swap"))


@contextmanager
def vandal(url: str, seed: int) -> Iterator[None]:
    """Damages blocks at random, one after the other, as long as the context lasts."""
    stop, rng = threading.Event(), Random(seed)

    def work() -> None:
        with Redis.from_url(url) as redis:
            while not stop.wait(VANDAL_EVERY_S):
                keys = list(redis.scan_iter(b"graceway:kv:*", count=1000))
                if keys:
                    spoil(redis, rng.choice(keys), rng.choice(keys), rng, VANDAL_WAYS)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def counts(http: aiohttp.ClientSession, engine: Engine) -> dict[str, float]:
    """What the engine's connector counted, by name."""
    async with http.get(engine.url + "/metrics") as answer:
        lines = [line for line in (await answer.text()).splitlines() if line.startswith("graceway_kv_")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def until_saved(url: str) -> None:
    """Returns when no more blocks come in."""
    before = -1
    with Redis.from_url(url) as redis:
        while before != (now := redis.dbsize()):
            before = now
            await asyncio.sleep(0.5)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_what_is_said_stays_the_same_whatever_becomes_of_the_blocks(
    redis: EmbeddedRedis, pair: tuple[Engine, Engine]
) -> None:
    (one, other), rng = pair, Random(5)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
        prompts = [random_prompt(rng, PROMPT_TOKENS) for _ in range(PROMPTS)]
        before = [one.cpu_s_of(part) for part in PARTS]
        expected = [(await ask(http, one.url, prompt, TOKENS)).ids for prompt in prompts]
        core_s, worker_s = (one.cpu_s_of(part) - was for part, was in zip(PARTS, before, strict=True))
        assert core_s < 0.3 * worker_s, "what waits for the one that computes takes its cores"
        await until_saved(redis.url)
        told = [await ask(http, other.url, prompts[0], TOKENS)]
        with vandal(redis.url, seed=6):
            for prompt in prompts[1:4]:
                await asyncio.to_thread(spoil_some, redis.url, rng)
                told.append(await ask(http, other.url, prompt, TOKENS))
            told += await asyncio.gather(*(ask(http, other.url, prompt, TOKENS) for prompt in prompts[4:]))
        assert [one_told.ids for one_told in told] == expected
        seen = await counts(http, other)
    assert seen["graceway_kv_loaded_bytes_total"] > 0
    missed = sum(value for name, value in seen.items() if name.startswith("graceway_kv_missed_"))
    assert missed > 0


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_blocks_in_one_byte_an_element_below_a_tier_of_vllm_s_own(
    redis: EmbeddedRedis, tmp_path: Path
) -> None:
    """Each engine has a folder of its own above Redis, so that what comes from the other one comes from there. Words that
    repeat leave no doubt about the next one, whatever a block has lost."""
    settings = replace(SETTINGS, compression="int8")
    ours = {**connector(CONNECTOR, asdict(settings)), "kv_connector_module_path": MODULE}

    def engine(name: str) -> Engine:
        above = connector("ExampleConnector", {"shared_storage_path": str(tmp_path / name)})
        log = tmp_path / f"{name}.log"
        return Engine(MODEL, free_port(), log, settings, redis.url, transfer([above, ours]))

    one, other = engine("a"), engine("b")
    try:
        await one.start()
        await other.start()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as http:
            prompt = random_prompt(Random(5), 12) * 50
            expected = (await ask(http, one.url, prompt, TOKENS)).ids
            await until_saved(redis.url)
            assert (await ask(http, other.url, prompt, TOKENS)).ids == expected
            assert (await ask(http, other.url, prompt, TOKENS)).ids == expected
            seen = await counts(http, other)
            kept = await counts(http, one)
    finally:
        await one.stop()
        await other.stop()
    assert seen["graceway_kv_loads_total"] == 1
    whole_bytes = len(prompt) // 32 * BLOCK_BYTES
    assert seen["graceway_kv_loaded_bytes_total"] > 0.9 * whole_bytes
    assert 0 < kept["graceway_kv_saved_bytes_total"] < 0.3 * whole_bytes
