"""Where requests go is said by the config and by supervisors alone: not by clients, replicas, or whoever writes to the store."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import time

import pytest

from state_store.memory import MemoryStateStore
from state_store.records import REPLICAS, ReplicaRecord
from tests.gateway.replica_server import ReplicaServer, Visit, answer, replica_server
from tests.integration.client import Question, ask
from tests.integration.rig import Json, canned, serving, tier
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def listens(visit: Visit) -> None:
    while True:
        await visit.request()
        await visit.say(answer(b"{}"))


def redirects(to: Callable[[], str], only: str = "") -> Callable[[Visit], Awaitable[None]]:
    """A replica that is well, but for sending everybody on: always, or from one path."""

    async def script(visit: Visit) -> None:
        while True:
            await visit.request()
            if visit.path == "/v1/models" and only:
                await visit.say(answer(b'{"data": [{"id": "m"}]}'))
            elif only and visit.path != only:
                await visit.say(answer(b'{"choices": [{"text": " 8, 9"}]}'))
            else:
                await visit.say(answer(b"", f"location: {to()}{visit.path}", status="307 Temporary Redirect"))

    return script


@asynccontextmanager
async def elsewhere() -> AsyncIterator[ReplicaServer]:
    async with replica_server(listens) as server:
        yield server


@pytest.mark.parametrize("only", ["", "/v1/chat/completions"], ids=["probes", "requests"])
async def test_a_redirect_is_never_followed(config: Path, only: str) -> None:
    async with elsewhere() as target, replica_server(redirects(lambda: target.url, only)) as replica:
        primary: Json = tier("primary", replica.url, probe=None)
        async with serving(config, primary, canned(), health={"interval_s": 0.1}) as gateway:
            served = await ask(gateway.url, Question(stream=False))
            assert (served.status, served.headers["x-served-tier"]) == (200, "canned")
            assert replica.visits
        assert target.visits == []


async def test_a_record_that_leads_elsewhere_gets_nothing(config: Path) -> None:
    """What stands in the store as a replica is asked only when its address is one."""
    managed: Json = {"name": "primary", "backend": "vllm", "model": "m", "served_model": "m", "slots": 4}
    store = MemoryStateStore()
    async with elsewhere() as wrong, elsewhere() as right:
        for name, url in (("wrong", f"{wrong.url}/admin?x="), ("right", right.url)):
            record = ReplicaRecord(name, "chat", "primary", url, "m", "ready", "", "", 4, 1.0, time())
            await store.put(REPLICAS, name, record.to_bytes(), ttl_s=60)
        async with serving(config, managed, canned(), store=store, health={"interval_s": 0.1}):

            async def is_asked() -> bool:
                return bool(right.visits)

            await eventually(is_asked)
        assert wrong.visits == []
