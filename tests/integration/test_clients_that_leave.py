"""Clients that hang up: the replica stops at once, every count returns to zero, and what was generated is counted."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.integration.client import Kind, Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import Json, RunningGateway, all_idle, serving, tier
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KINDS = pytest.mark.parametrize("kind", ["chat", "text"])
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
ABORTED_WITHIN_S = 0.2
LONG = 3000
"""Tokens: more than any test waits for."""


async def begun(engine: EngineProcess, tokens: int = 5) -> None:
    async def decodes() -> bool:
        return bool((await engine.stats())["tokens"] >= tokens)

    await eventually(decodes)


async def leave(task: "asyncio.Task[object]") -> None:
    """The client's connection is closed before this returns."""
    task.cancel()
    await asyncio.wait([task])


async def counted_aborts(engine: EngineProcess, aborts: int) -> None:
    async def aborted() -> bool:
        stats = await engine.stats()
        return bool(stats["aborted"] == aborts and not stats["running"] and not stats["waiting"])

    await eventually(aborted, ABORTED_WITHIN_S)


@KINDS
@STREAMED
@pytest.mark.parametrize("more", [{}, {"n": 2}], ids=["resumable", "passed through"])
async def test_the_replica_stops_at_once(
    engines: Engines, config: Path, kind: Kind, stream: bool, more: Json
) -> None:
    question = Question(kind, stream, LONG).with_(**more)
    async with serving(config, tier("primary", engines.a, probe=None)) as gateway:
        task = asyncio.create_task(ask(gateway.url, question))
        await begun(engines.a)
        await leave(task)
        await counted_aborts(engines.a, 1)
        await all_idle(gateway, engines.a, within_s=ABORTED_WITHIN_S)


@STREAMED
async def test_a_client_that_leaves_the_gateways_queue_is_forgotten(
    engines: Engines, config: Path, stream: bool
) -> None:
    """It held no slot and no replica heard of it; the one behind it still gets its turn."""
    question = Question("chat", stream, LONG)
    async with serving(config, tier("primary", engines.a, probe=None, slots=1)) as gateway:
        first = asyncio.create_task(ask(gateway.url, question))
        await begun(engines.a)
        queued = asyncio.create_task(ask(gateway.url, question))
        await waiting(gateway, 1)
        behind = asyncio.create_task(ask(gateway.url, Question("chat", stream, 10)))
        await waiting(gateway, 2)
        await leave(queued)
        await waiting(gateway, 1)
        await leave(first)
        assert_whole(Question("chat", stream, 10), await behind)
        assert (await engines.a.stats())["requests"] == 2
        await all_idle(gateway, engines.a)


async def waiting(gateway: RunningGateway, count: int) -> None:
    async def waits() -> bool:
        return bool((await gateway.status())["queue"]["chat"] == count)

    await eventually(waits, 2.0)


@STREAMED
async def test_a_client_that_leaves_an_engines_queue_frees_its_place(
    engines: Engines, config: Path, stream: bool
) -> None:
    """A tier that names no slots lets the engine queue."""
    question = Question("chat", stream, LONG)
    async with serving(config, tier("primary", engines.a, probe=None, slots=None)) as gateway:
        tasks = [asyncio.create_task(ask(gateway.url, question)) for _ in range(10)]

        async def queues() -> bool:
            stats = await engines.a.stats()
            return bool((stats["running"], stats["waiting"]) == (8, 2))

        await eventually(queues)
        for task in reversed(tasks):
            await leave(task)
        await counted_aborts(engines.a, 10)
        await all_idle(gateway, engines.a)


@STREAMED
@pytest.mark.parametrize("after_tokens", [None, 0, 5], ids=["no answer", "no token", "mid-stream"])
async def test_a_client_may_leave_a_replica_that_hangs(
    engines: Engines, config: Path, stream: bool, after_tokens: int | None
) -> None:
    async with serving(config, tier("primary", engines.a, probe=None)) as gateway:
        await engines.a.fault("hang", after_tokens=after_tokens)
        task = asyncio.create_task(ask(gateway.url, Question("chat", stream, LONG)))

        async def arrived() -> bool:
            stats = await engines.a.stats()
            return bool(stats["running"] and stats["tokens"] >= (after_tokens or 0))

        await eventually(arrived)
        await leave(task)
        await counted_aborts(engines.a, 1)
        await all_idle(gateway, engines.a, within_s=ABORTED_WITHIN_S)


@STREAMED
async def test_a_client_may_leave_between_two_attempts(engines: Engines, config: Path, stream: bool) -> None:
    """While the second replica has it, the first one having failed."""
    async with serving(config, tier("primary", *engines.primary, probe=None)) as gateway:
        await engines.a.fault("cut", after_tokens=20)
        task = asyncio.create_task(ask(gateway.url, Question("chat", stream, LONG)))
        await begun(engines.b)
        await leave(task)
        await counted_aborts(engines.b, 1)
        await all_idle(gateway, *engines.primary, within_s=ABORTED_WITHIN_S)


async def test_a_client_that_stops_reading_holds_no_other_up(engines: Engines, config: Path) -> None:
    async with serving(config, tier("primary", engines.a, probe=None)) as gateway:
        reader, writer = await asyncio.open_connection(
            *gateway.url.removeprefix("http://").split(":"), limit=1
        )
        body = b'{"model":"chat","stream":true,"max_tokens":3000,"ignore_eos":true,"messages":[{"role":"user","content":"x"}]}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        await begun(engines.a)
        assert_whole(Question("chat"), await ask(gateway.url, Question("chat")))
        writer.transport.abort()
        await counted_aborts(engines.a, 1)
        del reader


async def test_after_any_mix_of_cancels_every_count_is_zero(engines: Engines, config: Path) -> None:
    """Queued, connecting, before and after the first token, during a failover; with faults in between."""
    rng = random.Random(7)
    tiers = [tier("primary", *engines.primary, probe=None, slots=4), tier("small", engines.small, probe=None)]

    async def visit(gateway: RunningGateway) -> None:
        await asyncio.sleep(rng.random() * 1.5)
        kind: Kind = rng.choice(("chat", "text"))
        question = Question(kind, rng.random() < 0.6, rng.choice((5, 50, 500)), prompt=f"{rng.random()}")
        question = question.with_({"x-session-id": f"{rng.randrange(20)}"})
        task = asyncio.create_task(ask(gateway.url, question))
        await asyncio.wait([task], timeout=rng.choice((0.0, 0.001, 0.005, 0.02, 0.1, 0.3)))
        await leave(task)

    async def misbehave() -> None:
        for kind in ("cut", "error", "error_event", "role_then_error", "none"):
            await asyncio.sleep(0.25)
            await engines.a.fault(kind, share=0.5, **({"after_tokens": 10} if kind == "cut" else {}))

    async with serving(config, *tiers) as gateway:
        await asyncio.gather(misbehave(), *(visit(gateway) for _ in range(200)))
        await all_idle(gateway, *engines.all, within_s=1.0)
        for engine in engines.all:
            await engine.fault("none")

        async def back() -> bool:
            return all(r["state"] == "ready" for r in (await gateway.replicas()).values())

        await eventually(back)
        slots = [asyncio.create_task(ask(gateway.url, Question("chat", True, 100))) for _ in range(8)]
        for answer in await asyncio.gather(*slots):
            assert_whole(Question("chat", True, 100), answer)
            assert answer.headers["x-served-tier"] == "primary", answer.headers


@KINDS
@STREAMED
async def test_what_an_abandoned_answer_generated_is_counted(
    engines: Engines, config: Path, kind: Kind, stream: bool
) -> None:
    async with serving(config, tier("primary", engines.a, probe=None)) as gateway:
        task = asyncio.create_task(ask(gateway.url, Question(kind, stream, LONG)))
        await begun(engines.a, 30)
        await leave(task)
        await all_idle(gateway, engines.a)
        generated = (await engines.a.stats())["tokens"]
        assert 20 <= await gateway.metric("graceway_tokens_total", tier="primary") <= generated
        assert await gateway.metric("graceway_attempts_total", result="abandoned") == 1
        assert (await gateway.replicas())[engines.a.url]["breaker"] == "closed"


async def test_clients_that_leave_open_no_breaker(engines: Engines, config: Path) -> None:
    async with serving(config, tier("primary", engines.a, probe=None)) as gateway:
        for _ in range(20):
            answer = await ask(gateway.url, Question("chat", True, LONG), leave_after_tokens=1)
            assert answer.status == 200
        assert (await gateway.replicas())[engines.a.url]["breaker"] == "closed"
        assert await gateway.state_of(engines.a) == "ready"
        assert_whole(Question(), await ask(gateway.url, Question()))
