"""`/v1/embeddings`: the same routing, failover and admission as for completions, and only by tiers that can."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, canned, serving, tier
from tests.rig import free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXTS = ["rivers and rain", "something else"]


async def embed(
    gateway: RunningGateway, input_: Any = TEXTS, **headers: str
) -> tuple[int, dict[str, str], Any]:
    body = {"model": "chat", "input": input_, "encoding_format": "float"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{gateway.url}/v1/embeddings", json=body, headers=headers) as answer,
    ):
        return (
            answer.status,
            {k.lower(): v for k, v in answer.headers.items()},
            json.loads(await answer.read()),
        )


async def test_vectors_and_where_they_are_from(engines: Engines, config: Path) -> None:
    async with serving(config, tier("primary", *engines.primary)) as gateway:
        status, headers, body = await embed(gateway, **{"x-request-id": "e-1"})
        assert status == 200
        assert [d["index"] for d in body["data"]] == [0, 1]
        assert len(body["data"][0]["embedding"]) > 8
        assert body["data"][0]["embedding"] != body["data"][1]["embedding"]
        assert (headers["x-served-tier"], headers["x-request-id"]) == ("primary", "e-1")
        assert await gateway.metric("graceway_requests_total", outcome="served") == 1
        (seen,) = [r for r in await engines.a.requests() if r["path"] == "/v1/embeddings"]
        asked = json.loads(seen["body"])
        assert (asked["model"], asked["input"]) == ("m", TEXTS)
        assert "stream" not in asked
        assert "return_token_ids" not in asked


async def test_another_replica_when_one_fails(engines: Engines, config: Path) -> None:
    await engines.a.fault("error", status=500)
    async with serving(config, tier("primary", *engines.primary, probe=None)) as gateway:
        answers = await asyncio.gather(*(embed(gateway) for _ in range(6)))
    assert {status for status, _, _ in answers} == {200}
    assert {headers["x-served-replica"] for _, headers, _ in answers} == {
        engines.b.url.removeprefix("http://")
    }


async def test_no_fixed_text_is_an_embedding(engines: Engines, config: Path) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    async with serving(config, tier("primary", gone, probe=None), canned()) as gateway:
        status, headers, body = await embed(gateway)
    assert status == 503
    assert headers["x-shed-reason"] == body["error"]["code"] == "no_replica"


async def test_a_lower_tier_says_that_it_is_one(engines: Engines, config: Path) -> None:
    gone = f"http://127.0.0.1:{free_port()}"
    lower = tier("small", engines.small, gives_up={"max_tokens": 4})
    async with serving(config, tier("primary", gone, probe=None), lower) as gateway:
        status, headers, body = await embed(gateway)
        assert (status, headers["x-served-tier"], body["model"]) == (200, "small", "small")
        assert headers["x-degraded"] == "no_replica"
        (seen,) = [r for r in await engines.small.requests() if r["path"] == "/v1/embeddings"]
        assert "max_tokens" not in json.loads(seen["body"])


@pytest.mark.parametrize("input_", [None, "", [], 7, {"text": "x"}])
async def test_a_wrong_input_is_the_callers_mistake(engines: Engines, config: Path, input_: Any) -> None:
    async with serving(config, tier("primary", *engines.primary)) as gateway:
        status, _, body = await embed(gateway, input_)
        assert (status, body["error"]["param"]) == (400, "input")
        assert await gateway.metric("graceway_attempts_total") == 0


async def test_a_server_without_embeddings_is_not_ill(config: Path) -> None:
    async def well(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    app = web.Application()
    app.router.add_get("/health", well)
    app.router.add_get("/v1/models", well)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with serving(config, tier("primary", url, probe=None)) as gateway:
            for _ in range(8):
                status, _, body = await embed(gateway)
                assert (status, body["error"]["code"]) == (404, "not_offered")
            (replica,) = (await gateway.replicas()).values()
            assert replica["breaker"] == "closed"
    finally:
        await runner.cleanup()
