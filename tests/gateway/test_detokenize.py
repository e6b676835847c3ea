"""Text of token ids, from a replica that can tell and from those that can't."""

from random import Random

import orjson
import pytest

from gateway.detokenize import detokenize
from gateway.fleet import Fleet
from gateway.replica import Replica
from gateway.specs import BreakerSpec, Endpoint, TierSpec
from tests.gateway.replica_server import CHUNKED, Script, Visit, answer, replica_server


def replica(url: str, api_key: str | None = None) -> Replica:
    tier = TierSpec(
        name="best", backend="openai", served_model="m", replicas=(Endpoint(url=url),), api_key=api_key
    )
    (found,) = Fleet("chat", [tier], BreakerSpec(), Random(0), "").tiers["best"].replicas.values()
    return found


async def ask(script: Script) -> str | None:
    async with replica_server(script) as server:
        found = replica(server.url)
        try:
            return await detokenize(found, [1, 2])
        finally:
            found.pool.close()


async def test_asks_for_the_model_that_the_replica_knows_with_its_key() -> None:
    async def script(visit: Visit) -> None:
        asked.append(orjson.loads(await visit.request()))
        heads.append(visit.requests[0])
        await visit.say(answer(b'{"prompt": "Hello \xe2\x80\x94"}'))

    asked: list[object] = []
    heads: list[bytes] = []
    async with replica_server(script) as server:
        assert await detokenize(replica(server.url, "secret"), [1, 2]) == "Hello —"
    assert asked == [{"model": "m", "tokens": [1, 2]}]
    assert heads[0].startswith(b"POST /detokenize HTTP/1.1\r\n")
    assert b"\r\nauthorization: Bearer secret\r\n" in heads[0]


@pytest.mark.parametrize(
    "said",
    [
        answer(b'{"detail": "Not Found"}', status="404 Not Found"),
        answer(b'{"prompt": "x"}', status="500 Internal Server Error"),
        answer(b"{}"),
        answer(b"[]"),
        answer(b"no JSON"),
        answer(b"cut")[:-1],
        CHUNKED + b"zz\r\n",
        b"",
    ],
)
async def test_one_that_can_t_tell(said: bytes) -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.say(said)

    assert await ask(script) is None


async def test_one_that_does_not_tell_in_time() -> None:
    async def script(visit: Visit) -> None:
        await visit.request()
        await visit.gone()

    assert await ask(script) is None
