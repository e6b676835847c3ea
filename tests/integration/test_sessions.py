"""Sessions through two gateways that share a real Redis: the same replica for both, moved by nothing but its loss."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from state_store.embedded import EmbeddedRedis
from state_store.guarded import GuardedStateStore
from state_store.protocol import StateStore
from state_store.redis import RedisStateStore
from tests.integration.client import Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, serving, tier
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SESSIONS = 20
PATIENT_S = 5.0
"""These tests are about meaning; what a slow machine does to the store's usual 50 ms is tested elsewhere."""
Homes = dict[str, str]


@pytest_asyncio.fixture(loop_scope="session")
async def redis() -> AsyncIterator[EmbeddedRedis]:
    server = EmbeddedRedis()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def patient(server: EmbeddedRedis) -> StateStore:
    return GuardedStateStore(RedisStateStore(server.url, timeout_s=PATIENT_S))


async def turn(gateway: RunningGateway, session: str) -> str:
    """The replica that served one turn."""
    question = Question(tokens=6, prompt=session).with_({"x-session-id": session})
    answer = await ask(gateway.url, question)
    assert_whole(question, answer)
    return answer.headers["x-served-replica"]


async def turns(gateways: list[RunningGateway], rounds: int = 1) -> list[Homes]:
    """Every session, concurrently; each round through the other gateway."""
    found = []
    for number in range(rounds):

        async def one(session: int, number: int = number) -> tuple[str, str]:
            gateway = gateways[(session + number) % len(gateways)]
            return f"s{session}", await turn(gateway, f"s{session}")

        found.append(dict(await asyncio.gather(*(one(session) for session in range(SESSIONS)))))
    return found


def moved(before: Homes, after: Homes) -> set[str]:
    return {session for session in before if before[session] != after[session]}


async def test_no_session_moves_without_a_fault(engines: Engines, config: Path, redis: EmbeddedRedis) -> None:
    primary = tier("primary", *engines.primary, slots=32)
    async with (
        serving(config, primary, store=patient(redis), routing={}) as one,
        serving(config, primary, store=patient(redis), routing={}) as two,
    ):
        first, *later = await turns([one, two], rounds=6)
        assert all(homes == first for homes in later)
        assert len(set(first.values())) == 2


async def test_two_gateways_agree_from_the_first_turn(
    engines: Engines, config: Path, redis: EmbeddedRedis
) -> None:
    """Both see a new session at the same moment."""
    primary = tier("primary", *engines.primary, slots=32)
    async with (
        serving(config, primary, store=patient(redis), routing={}) as one,
        serving(config, primary, store=patient(redis), routing={}) as two,
    ):
        for session in range(SESSIONS):
            homes = await asyncio.gather(turn(one, f"new-{session}"), turn(two, f"new-{session}"))
            assert homes[0] == homes[1]


async def test_a_gateway_that_starts_later_finds_the_sessions(
    engines: Engines, config: Path, redis: EmbeddedRedis
) -> None:
    async with AsyncExitStack() as stack:
        third = await stack.enter_async_context(EngineProcess(token_ms=2))
        both = tier("primary", *engines.primary, slots=32)
        async with serving(config, both, store=patient(redis), routing={}) as one:
            before = (await turns([one]))[0]
        all_three = tier("primary", *engines.primary, third, slots=32)
        async with serving(config, all_three, store=patient(redis), routing={}) as two:
            assert moved(before, (await turns([two]))[0]) == set()


async def test_two_gateways_restarted_in_turn_move_nobody(
    engines: Engines, config: Path, redis: EmbeddedRedis
) -> None:
    async with AsyncExitStack() as stack:
        third = await stack.enter_async_context(EngineProcess(token_ms=2))

        async def start(*engines: EngineProcess) -> tuple[AsyncExitStack, RunningGateway]:
            own = AsyncExitStack()
            served = serving(config, tier("primary", *engines, slots=32), store=patient(redis), routing={})
            gateway = await own.enter_async_context(served)
            stack.push_async_callback(own.aclose)
            return own, gateway

        gateways = [await start(*engines.primary), await start(*engines.primary)]
        before = (await turns([gateway for _, gateway in gateways]))[0]
        for number in range(2):
            await gateways[number][0].aclose()
            # With a replica more, so that hashing alone would send some elsewhere.
            gateways[number] = await start(*engines.primary, third)
            for homes in await turns([gateway for _, gateway in gateways], rounds=2):
                assert moved(before, homes) == set()


async def test_answers_tell_their_turn_and_where_it_is_kept(
    engines: Engines, config: Path, redis: EmbeddedRedis
) -> None:
    primary = tier("primary", *engines.primary)
    # Longer than the store takes on a machine that is busy: what is not known when an answer begins is not told.
    question = Question(tokens=60, stream=False).with_({"x-session-id": "told"})
    async with (
        serving(config, primary, store=patient(redis)) as one,
        serving(config, primary, store=patient(redis)) as two,
    ):
        told = []
        for number in range(6):
            answer = await ask((one, two)[number % 2].url, question)
            told.append(answer.headers)
        assert [h["x-session-turn"] for h in told] == ["1", "2", "3", "4", "5", "6"]
        assert len({h["x-session-epoch"] for h in told}) == 1
        assert {h["x-session-durability"] for h in told} == {"stored"}
        assert await one.metric("graceway_session_turns_total", durability="stored") == 3
        assert await one.metric("graceway_session_epochs_total", cause="new") == 1
        streamed = await ask(one.url, replace(question, stream=True))
        assert (
            int(streamed.headers["x-session-turn"]) > 6 or streamed.headers["x-session-durability"] == "local"
        )
        assert "x-session-turn" not in (await ask(one.url, Question(tokens=6))).headers


async def test_turns_without_the_store_say_so_and_are_made_up_for(
    engines: Engines, config: Path, redis: EmbeddedRedis
) -> None:
    primary = tier("primary", *engines.primary)
    question = Question(tokens=6).with_({"x-session-id": "frozen"})
    async with serving(config, primary, store=redis.url) as one:
        first = await ask(one.url, question)
        os.kill(redis.pid, signal.SIGSTOP)
        local = [(await ask(one.url, question)).headers for _ in range(3)]
        os.kill(redis.pid, signal.SIGCONT)
        assert [h["x-session-durability"] for h in local] == ["local"] * 3
        assert [h["x-session-turn"] for h in local] == ["2", "3", "4"]

        async def is_made_up_for() -> bool:
            return (await one.status())["sessions_unsaved"] == 0

        await eventually(is_made_up_for)
    async with serving(config, primary, store=patient(redis)) as two:
        later = await ask(two.url, question)
        assert later.headers["x-session-epoch"] == first.headers["x-session-epoch"]
        assert later.headers["x-session-turn"] == "5"


async def test_a_replica_that_is_added_moves_nobody_and_one_that_dies_only_its_own(
    engines: Engines, tmp_path: Path, redis: EmbeddedRedis
) -> None:
    async with AsyncExitStack() as stack:
        third = await stack.enter_async_context(EngineProcess(token_ms=2))
        both = tier("primary", *engines.primary, slots=32)
        gateways = [
            await stack.enter_async_context(
                serving(tmp_path / f"{number}.yaml", both, store=patient(redis), routing={})
            )
            for number in range(2)
        ]
        before = (await turns(gateways))[0]
        for gateway in gateways:
            await gateway.reload(tier("primary", *engines.primary, third, slots=32), routing={})

        async def all_ready() -> bool:
            states = [r["state"] for g in gateways for r in (await g.replicas()).values()]
            return states == ["ready"] * 6

        await eventually(all_ready)
        for homes in await turns(gateways, rounds=3):
            assert moved(before, homes) == set()
        newcomers = [await turn(gateways[n % 2], f"newcomer-{n}") for n in range(30)]
        assert set(newcomers) == {e.url.removeprefix("http://") for e in (*engines.primary, third)}

        await engines.a.kill()
        lost = {s for s, home in before.items() if home in engines.a.url}
        after = (await turns(gateways))[0]
        assert moved(before, after) == lost
        for homes in await turns(gateways, rounds=3):
            assert moved(after, homes) == set()
        await engines.a.restart()
        await eventually(all_ready)
        for homes in await turns(gateways, rounds=2):
            assert moved(after, homes) == set()


async def test_without_a_store_two_gateways_still_agree(engines: Engines, config: Path) -> None:
    """They compute alike: what is lost is the memory of what was added or died."""
    primary = tier("primary", *engines.primary, slots=32)
    async with serving(config, primary, routing={}) as one, serving(config, primary, routing={}) as two:
        for session in range(SESSIONS):
            assert await turn(one, f"s{session}") == await turn(two, f"s{session}")
