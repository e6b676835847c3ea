"""What vLLM says that its prefix cache holds: the same hashes that gateways compute, from the engine's own events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest

from replicas.engines import EngineSpec
from replicas.kv_events import BlockStored, Hash, KvEvents
from replicas.supervisor import ReplicaSpec, Supervisor
from state_store.memory import MemoryStateStore
from state_store.prefix_news import TOKEN_BLOCK, Held, from_bytes, token_chain, topic_of
from state_store.records import REPLICAS, ReplicaRecord
from tests.rig import eventually

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "smollm2-135m"
STARTS_WITHIN_S = 400.0
# Room for one prompt of this test and not for two, in blocks of 32 tokens.
FEW_BLOCKS = ("--num-gpu-blocks-override", "20")


@pytest.fixture
async def replica(tmp_path: Path) -> AsyncIterator[tuple[Supervisor, MemoryStateStore]]:
    engine = EngineSpec("vllm", str(MODEL), "m", slots=1, max_model_len=512, extra_args=FEW_BLOCKS)
    spec = ReplicaSpec("r0", "chat", "primary", engine, start_timeout_s=STARTS_WITHIN_S)
    store = MemoryStateStore()
    supervisor = Supervisor(spec, store, log_folder=tmp_path)
    running = asyncio.create_task(supervisor.run())
    try:
        await asyncio.wait_for(supervisor.until_ready(), STARTS_WITHIN_S)
        yield supervisor, store
    finally:
        await supervisor.stop()
        await running


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_what_vllm_stores_and_drops_is_told_in_hashes_that_gateways_know(
    replica: tuple[Supervisor, MemoryStateStore],
) -> None:
    supervisor, store = replica
    first = await ask(supervisor.url, [100 + n % 50 for n in range(400)])
    blocks = token_chain(first)[: 400 // 32 * 32 // TOKEN_BLOCK]
    assert len(blocks) == 24
    await eventually(lambda: holds(store, set(blocks)), 20)
    await eventually(lambda: tells_of(store, 12), 20)
    assert await heard_late(supervisor) >= 12
    # Another one takes the place of some; evicted blocks are told of within a second of its answer.
    await ask(supervisor.url, [300 + n % 70 for n in range(400)])
    await eventually(lambda: holds_not(store, set(blocks)), 1.5)


async def heard_late(supervisor: Supervisor) -> int:
    """How many blocks somebody hears of who begins to listen now."""
    events = KvEvents(supervisor._engine.kv_events)
    held: set[Hash] = set()
    try:
        async with asyncio.timeout(20), aclosing(events.batches()) as batches:
            async for batch in batches:
                held |= {
                    name for event in batch if isinstance(event, BlockStored) for name in event.block_hashes
                }
                if len(held) >= 12:
                    break
    finally:
        events.close()
    return len(held)


async def ask(url: str, prompt: list[int]) -> list[int]:
    """The prompt's tokens, once they have been computed."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 2, "temperature": 0, "return_token_ids": True}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        ids: list[int] = (await response.json())["choices"][0]["prompt_token_ids"]
        assert ids == prompt
        return ids


async def held(store: MemoryStateStore) -> set[int]:
    found: set[int] = set()
    for _, raw in await store.read(topic_of("chat")):
        news = from_bytes(raw)
        assert isinstance(news, Held)
        found = (set() if news.is_anew else found - set(news.removed)) | set(news.added)
    return found


async def holds(store: MemoryStateStore, blocks: set[int]) -> bool:
    return blocks <= await held(store)


async def holds_not(store: MemoryStateStore, blocks: set[int]) -> bool:
    return not blocks <= await held(store)


async def tells_of(store: MemoryStateStore, blocks: int) -> bool:
    record = ReplicaRecord.from_bytes(await store.get(REPLICAS, "r0") or b"")
    return record is not None and record.held_blocks >= blocks
