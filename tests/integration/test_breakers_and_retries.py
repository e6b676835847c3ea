"""What opens a breaker and what does not, how it closes again, and how often one request may be tried."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.integration.client import Answer, Kind, Question, ask, assert_refused, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import (
    BRISK,
    Json,
    RunningGateway,
    all_idle,
    attempts,
    canned,
    serving,
    tier,
)
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
QUICK: Json = {"min_count": 5, "backoff_s": 0.3, "backoff_max_s": 0.5, "probes": 2}


async def breaker_of(gateway: RunningGateway, engine: EngineProcess) -> str:
    return str((await gateway.replicas())[engine.url]["breaker"])


async def ask_many(gateway: RunningGateway, count: int, question: Question) -> list[Answer]:
    return list(await asyncio.gather(*(ask(gateway.url, question) for _ in range(count))))


# 14: clients' mistakes


@STREAMED
@pytest.mark.parametrize("status", [400, 413, 422])
async def test_clients_mistakes_open_no_breaker(
    engines: Engines, config: Path, stream: bool, status: int
) -> None:
    async with serving(config, tier("primary", engines.a, probe=None), breaker=QUICK) as gateway:
        await engines.a.fault("error", status=status)
        for answer in await ask_many(gateway, 30, Question("chat", stream)):
            assert answer.status == status
            assert answer.json["error"]["message"] == "injected fault"
        assert await breaker_of(gateway, engines.a) == "closed"
        assert await gateway.state_of(engines.a) == "ready"
        assert (await engines.a.stats())["requests"] == 30
        await engines.a.fault("none")
        assert_whole(Question("chat", stream), await ask(gateway.url, Question("chat", stream)))


@STREAMED
@pytest.mark.parametrize("kind", ["chat", "text"])
async def test_a_real_mistake_is_told_in_the_replicas_words(
    engines: Engines, config: Path, kind: Kind, stream: bool
) -> None:
    async with serving(config, tier("primary", *engines.primary, probe=None), canned()) as gateway:
        answer = await ask(gateway.url, Question(kind, stream, 10_000_000))
        assert answer.status == 400
        assert "maximum context length" in answer.json["error"]["message"]
        assert len(await attempts(answer.request_id, *engines.all)) == 1


@STREAMED
async def test_a_clients_mistake_closes_no_half_open_breaker(
    engines: Engines, config: Path, stream: bool
) -> None:
    question = Question("chat", stream, 5)
    async with serving(config, tier("primary", engines.a, probe=None), breaker=QUICK) as gateway:
        await open_breaker(gateway, engines.a)
        await engines.a.fault("error", status=400)

        async def was_tried() -> bool:
            return (await ask(gateway.url, question)).status == 400

        await eventually(was_tried)
        for _ in range(10):
            assert (await ask(gateway.url, question)).status == 400
        assert await breaker_of(gateway, engines.a) == "half-open"
        await engines.a.fault("none")
        for _ in range(QUICK["probes"]):
            assert_whole(question, await ask(gateway.url, question))
        assert await breaker_of(gateway, engines.a) == "closed"


async def open_breaker(gateway: RunningGateway, engine: EngineProcess) -> None:
    await engine.fault("error", status=500)
    await ask_many(gateway, 6, Question())
    assert await breaker_of(gateway, engine) == "open"


# 15: backpressure


@STREAMED
@pytest.mark.parametrize("status", [429, 503])
async def test_a_full_replica_is_not_ill(engines: Engines, config: Path, stream: bool, status: int) -> None:
    question = Question("chat", stream, 5)
    async with serving(config, tier("primary", *engines.primary, probe=None), breaker=QUICK) as gateway:
        await engines.a.fault("error", status=status, retry_after=0.3)
        for _ in range(30):
            assert_whole(question, await ask(gateway.url, question))
        assert await breaker_of(gateway, engines.a) == "closed"
        assert await gateway.state_of(engines.a) == "ready"
        await engines.a.fault("none")
        served = (await engines.a.stats())["served"]

        async def takes_again() -> bool:
            await ask(gateway.url, question)
            return bool((await engines.a.stats())["served"] > served)

        await eventually(takes_again, 2.0)


async def test_a_retry_after_is_honoured(engines: Engines, config: Path) -> None:
    async with serving(config, tier("primary", *engines.primary, probe=None)) as gateway:
        await engines.a.fault("error", status=503, retry_after=30)
        for _ in range(20):
            assert_whole(Question(tokens=5), await ask(gateway.url, Question(tokens=5)))
        assert (await engines.a.stats())["errors"] == 1


@STREAMED
@pytest.mark.parametrize("status", [429, 503])
async def test_when_every_replica_is_full_it_is_contention(
    engines: Engines, config: Path, stream: bool, status: int
) -> None:
    async with serving(config, tier("primary", *engines.primary, probe=None)) as gateway:
        for engine in engines.primary:
            await engine.fault("error", status=status, retry_after=7)
        answer = await ask(gateway.url, Question("chat", stream))
        assert_refused(answer, 429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1


# 16: half open


async def test_half_open_lets_few_through_and_closes_under_load(engines: Engines, config: Path) -> None:
    """While every probe is slow, nobody else gets in; when they have passed, everybody does."""
    question = Question(tokens=5)
    tiers = [tier("primary", engines.a, probe=None, slots=32), tier("small", engines.small, probe=None)]
    async with serving(config, *tiers, breaker=QUICK) as gateway:
        await open_breaker(gateway, engines.a)
        await engines.a.reset()
        await engines.a.fault("slow", factor=100)
        peak, stopped = 0, asyncio.Event()

        async def load() -> None:
            while not stopped.is_set():
                assert_whole(question, await ask(gateway.url, question))

        async def half_open() -> bool:
            return await breaker_of(gateway, engines.a) == "half-open"

        clients = [asyncio.create_task(load()) for _ in range(16)]
        await eventually(half_open)
        for _ in range(20):
            seen = (await gateway.replicas())[engines.a.url]
            peak = max(peak, seen["in_flight"] if seen["breaker"] == "half-open" else 0)
            await asyncio.sleep(0.01)
        await engines.a.fault("none")

        async def closed() -> bool:
            return await breaker_of(gateway, engines.a) == "closed"

        await eventually(closed)
        stopped.set()
        await asyncio.gather(*clients)
        assert peak == QUICK["probes"]
        assert_whole(question, answer := await ask(gateway.url, question))
        assert answer.headers["x-served-tier"] == "primary"
        await all_idle(gateway, *engines.all)


async def test_a_half_open_breaker_opens_again_for_one_failure(engines: Engines, config: Path) -> None:
    tiers = [tier("primary", engines.a, probe=None), canned("Later.")]
    async with serving(config, *tiers, breaker={**QUICK, "backoff_s": 0.2}) as gateway:
        await open_breaker(gateway, engines.a)
        before = (await engines.a.stats())["errors"]
        started = time.monotonic()
        while time.monotonic() - started < 1.5:
            assert (await ask(gateway.url, Question())).text == "Later."
        # Back-offs of at least 0.2, 0.4, then 0.5 s, each shortened by its jitter at most by half.
        assert 1 <= (await engines.a.stats())["errors"] - before <= 12
        assert await breaker_of(gateway, engines.a) in ("open", "half-open")


# 17: the dead primary is not asked every time


@STREAMED
@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "error", "status": 500},
        {"kind": "role_then_error"},
        {"kind": "no_tokens"},
        {"kind": "hang"},
        {"kind": "cut", "after_tokens": 0},
        {"kind": "error", "status": 500, "share": 0.8},
    ],
    ids=lambda fault: "-".join(str(v) for v in fault.values()),
)
async def test_a_dead_primary_costs_few_requests_anything(
    engines: Engines, config: Path, stream: bool, fault: Json
) -> None:
    question = Question("chat", stream, 5)
    tiers = [tier("primary", engines.a, probe=None, slo=BRISK), tier("small", engines.small, probe=None)]
    async with serving(config, *tiers, breaker={"min_count": 5, "backoff_s": 30.0}) as gateway:
        await engines.a.fault(**fault)
        answers = await ask_many(gateway, 8, question)
        for _ in range(8):
            answers += await ask_many(gateway, 8, question)
        for answer in answers:
            assert_whole(question, answer)
        assert (await engines.a.stats())["requests"] <= 24
        at = time.monotonic()
        for _ in range(10):
            assert (await ask(gateway.url, question)).headers["x-served-tier"] == "small"
        assert time.monotonic() - at < 3.0


# 18: one pass, one budget


@STREAMED
async def test_an_exhausted_chain_is_gone_through_once(engines: Engines, config: Path, stream: bool) -> None:
    tiers = [tier("primary", *engines.primary, probe=None), tier("small", engines.small, probe=None)]
    async with serving(config, *tiers, breaker={"min_count": 1000}) as gateway:
        for engine in engines.all:
            await engine.fault("error", status=500)
        answer = await ask(gateway.url, Question("chat", stream))
        assert_refused(answer, 503, "no_replica")
        seen = await attempts(answer.request_id, *engines.all)
        assert sorted(r["engine"] for r in seen) == sorted(e.url for e in engines.all)


async def test_when_all_fail_the_budget_bounds_what_is_tried_again(engines: Engines, config: Path) -> None:
    # With room for all at once: who finds it full is refused as that, and tries nothing.
    room = {"slots": 64, "probe": None}
    tiers = [tier("primary", *engines.primary, **room), tier("small", engines.small, **room)]
    retry = {"budget_share": 0.1, "budget_floor_per_s": 0.0}
    async with serving(config, *tiers, breaker={"min_count": 10_000}, retry=retry) as gateway:
        for engine in engines.all:
            await engine.fault("error", status=500)
        for _ in range(20):
            for answer in await ask_many(gateway, 25, Question()):
                assert answer.status == 503
        tried = sum([(await e.stats())["requests"] for e in engines.all])
        burst = 32
        assert 500 <= tried <= 500 * 1.1 + burst


async def test_attempts_on_replicas_and_tiers_share_one_deadline(engines: Engines, config: Path) -> None:
    question = Question().with_({"x-request-timeout-seconds": "0.6"})
    tiers = [tier("primary", *engines.primary, probe=None), tier("small", engines.small, probe=None)]
    async with serving(config, *tiers) as gateway:
        for engine in engines.all:
            await engine.fault("hang")
        at = time.monotonic()
        answer = await ask(gateway.url, question)
        assert_refused(answer, 429, "deadline")
        assert 0.5 < time.monotonic() - at < 1.5
        await all_idle(gateway, *engines.all)


@STREAMED
async def test_a_deadline_in_mid_stream_is_said(engines: Engines, config: Path, stream: bool) -> None:
    question = Question("chat", stream, 3000).with_({"x-request-timeout-seconds": "0.5"})
    async with serving(config, tier("primary", *engines.primary, probe=None)) as gateway:
        answer = await ask(gateway.url, question)
        if stream:
            assert answer.dones == 0
            assert [e["error"]["code"] for e in answer.errors] == ["deadline"]
            told = "the stream broke: the deadline passed before the answer was whole"
            assert answer.errors[0]["error"]["message"] == told
        else:
            assert_refused(answer, 429, "deadline")
        assert len(await attempts(answer.request_id, *engines.all)) == 1
        await all_idle(gateway, *engines.all, within_s=0.5)


async def test_a_replica_that_nobody_can_stand_in_for_is_waited_for(engines: Engines, config: Path) -> None:
    """Fast answers make the gateway impatient, which serves nobody where there is nobody else."""
    question = Question(tokens=1)
    async with serving(config, tier("primary", engines.a, probe=None), canned()) as gateway:
        for _ in range(150):
            assert_whole(question, await ask(gateway.url, question))
        await engines.a.fault("slow", factor=1200)
        answer = await ask(gateway.url, question)
        assert_whole(question, answer)
        assert answer.headers["x-served-tier"] == "primary"
