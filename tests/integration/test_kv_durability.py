"""What an answer says of how durable its turn is; and that under `sync` it ends when the engine says that it is stored."""

import asyncio
import time
from pathlib import Path

import pytest

from state_store.kv.turn import PARAMETER, STORED, TURNS
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStoreUnavailable
from tests.integration.client import Answer, Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import attempts, serving, tier
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

A_REDIS = {"url": "redis://h"}
"""What the config says; the store under test is another."""


class Broken(MemoryStateStore):
    """A store that has no turns."""

    async def get(self, group: str, key: str) -> bytes | None:
        if group == TURNS:
            raise StateStoreUnavailable("gone")
        return await super().get(group, key)


async def acknowledge(store: MemoryStateStore, engine: EngineProcess, mark: bytes, after_s: float) -> str:
    """Plays the engine's part for the next request that it gets: the turn's name."""
    turns: list[str] = []

    async def has_come() -> bool:
        turns[:] = [
            seen["json"]["kv_transfer_params"][PARAMETER]
            for seen in await attempts("turn-1", engine)
            if "kv_transfer_params" in seen["json"]
        ]
        return bool(turns)

    await eventually(has_come)
    await asyncio.sleep(after_s)
    await store.put(TURNS, turns[0], mark, ttl_s=60)
    return turns[0]


def question(stream: bool) -> Question:
    return Question(tokens=5, stream=stream).with_({"x-request-id": "turn-1"})


@pytest.mark.parametrize(
    ("strategy", "said"), [("recompute", None), ("checkpoint", "checkpoint"), ("replicate", "replicate")]
)
async def test_what_a_tier_keeps_is_said_and_nothing_is_waited_for(
    engines: Engines, tmp_path: Path, strategy: str, said: str | None
) -> None:
    engine = engines.a
    one = tier("primary", engine, kv={"strategy": strategy})
    async with serving(tmp_path / "c.yaml", one, store=MemoryStateStore(), state_store=A_REDIS) as gateway:
        answer = await ask(gateway.url, question(stream=True))
        assert_whole(question(stream=True), answer)
        assert answer.headers.get("x-kv-durability") == said
        assert "kv_transfer_params" not in (await attempts("turn-1", engine))[0]["json"]
        counted = await gateway.metric("graceway_kv_turns_total", tier="primary", durability=strategy)
        assert counted == (0 if said is None else 1)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_synchronous_turn_ends_when_it_is_stored(
    engines: Engines, tmp_path: Path, stream: bool
) -> None:
    engine, store = engines.a, MemoryStateStore()
    one = tier("primary", engine, kv={"strategy": "sync"})
    async with serving(tmp_path / "c.yaml", one, store=store, state_store=A_REDIS) as gateway:
        begun = time.monotonic()
        acknowledging = asyncio.create_task(acknowledge(store, engine, STORED, after_s=0.2))
        answer = await ask(gateway.url, question(stream))
        assert time.monotonic() - begun > 0.2
        await acknowledging
        assert_whole(question(stream), answer)
        assert answer.headers["x-kv-durability"] == "sync"
        assert await gateway.metric("graceway_kv_turns_total", durability="sync") == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("mark", [b"", b"anything"])
async def test_a_turn_that_is_not_stored_in_time_ends_all_the_same_and_says_so(
    engines: Engines, tmp_path: Path, stream: bool, mark: bytes
) -> None:
    engine, store = engines.a, MemoryStateStore()
    one = tier("primary", engine, kv={"strategy": "sync"})
    async with serving(tmp_path / "c.yaml", one, store=store, state_store=A_REDIS) as gateway:
        acknowledging = asyncio.create_task(acknowledge(store, engine, mark, after_s=0.0))
        answer = await ask(gateway.url, question(stream))
        await acknowledging
        await expect_unconfirmed(answer, stream)
        assert await gateway.metric("graceway_kv_turns_total", durability="unconfirmed") == 1


async def test_a_store_that_is_gone_costs_no_wait(engines: Engines, tmp_path: Path) -> None:
    one = tier("primary", engines.a, kv={"strategy": "sync"})
    async with serving(tmp_path / "c.yaml", one, store=Broken(), state_store=A_REDIS) as gateway:
        await expect_unconfirmed(await ask(gateway.url, question(stream=True)), stream=True)


async def expect_unconfirmed(answer: Answer, stream: bool) -> None:
    assert_whole(question(stream), answer)
    if stream:
        assert answer.headers["x-kv-durability"] == "sync"
        assert b": kv durability unconfirmed\n\ndata: [DONE]" in answer.raw
    else:
        assert answer.headers["x-kv-durability"] == "unconfirmed"


async def test_the_caller_s_own_parameters_go_through(engines: Engines, tmp_path: Path) -> None:
    engine, store = engines.a, MemoryStateStore()
    one = tier("primary", engine, kv={"strategy": "sync"})
    asked = question(stream=True).with_(kv_transfer_params={"theirs": 1})
    async with serving(tmp_path / "c.yaml", one, store=store, state_store=A_REDIS) as gateway:
        acknowledging = asyncio.create_task(acknowledge(store, engine, STORED, after_s=0.0))
        await ask(gateway.url, asked)
        turn = await acknowledging
        seen = (await attempts("turn-1", engine))[0]["json"]
        assert seen["kv_transfer_params"] == {"theirs": 1, PARAMETER: turn}


@pytest.mark.parametrize("strategy", ["replicate", "sync"])
async def test_nothing_is_promised_of_a_turn_that_is_not_to_be_kept(
    engines: Engines, tmp_path: Path, strategy: str
) -> None:
    engine = engines.a
    one = tier("primary", engine, kv={"strategy": strategy})
    asked = question(stream=True).with_(kv_transfer_params={"graceway_keep": False})
    async with serving(tmp_path / "c.yaml", one, store=MemoryStateStore(), state_store=A_REDIS) as gateway:
        answer = await ask(gateway.url, asked)
        assert_whole(asked, answer)
        assert b"unconfirmed" not in answer.raw
        assert "x-kv-durability" not in answer.headers
        assert (await attempts("turn-1", engine))[0]["json"]["kv_transfer_params"] == {"graceway_keep": False}
        assert await gateway.metric("graceway_kv_turns_total") == 0
