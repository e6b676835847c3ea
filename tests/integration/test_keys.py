"""API keys from outside: who is turned away, who is held to what, over HTTP as clients send it."""

import asyncio
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration.conftest import Engines
from tests.integration.rig import Json, canned, serving, tier

pytestmark = pytest.mark.asyncio(loop_scope="session")


def key(secret: str, **more: Any) -> Json:
    return {"name": secret, "sha256": sha256(secret.encode()).hexdigest(), **more}


async def ask(
    url: str, secret: str | None, path: str = "/v1/completions", tokens: int = 2, **headers: str
) -> tuple[int, Json, Any]:
    bearing = {} if secret is None else {"authorization": f"Bearer {secret}"}
    body = {"model": "chat", "prompt": "rivers", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    async with (
        aiohttp.ClientSession() as http,
        http.post(url + path, json=body, headers=bearing | headers) as answer,
    ):
        return answer.status, await answer.json(), answer.headers


async def test_strangers_get_a_401_in_openais_form(engines: Engines, config: Path) -> None:
    async with serving(config, tier("primary", engines.a), keys=[key("sk-a")]) as gateway:
        for secret in (None, "sk-b"):
            status, body, _ = await ask(gateway.url, secret)
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        assert (await ask(gateway.url, "sk-a"))[0] == 200
    # The client's key stops here: it is no business of the replica.
    assert all("sk-" not in str(request) for request in await engines.a.requests())


async def test_a_key_for_other_models_gets_a_403(engines: Engines, config: Path) -> None:
    async with serving(config, tier("primary", engines.a), keys=[key("sk-a", models=["other"])]) as gateway:
        status, body, _ = await ask(gateway.url, "sk-a")
        assert (status, body["error"]["param"]) == (403, "model")


async def test_a_spent_quota_is_a_429_that_says_when(engines: Engines, config: Path) -> None:
    async with serving(
        config, tier("primary", engines.a), keys=[key("sk-a", requests_per_minute=1)]
    ) as gateway:
        assert (await ask(gateway.url, "sk-a"))[0] == 200
        status, body, headers = await ask(gateway.url, "sk-a")
        assert (status, headers["x-shed-reason"]) == (429, "rate_limited")
        assert 50 <= int(headers["retry-after"]) <= 60
        assert body["error"]["code"] == "rate_limited"


async def test_a_keys_lowest_tier_holds_whatever_the_caller_asks(engines: Engines, config: Path) -> None:
    await engines.a.fault("error", status=500)
    ladder = [tier("primary", engines.a), tier("small", engines.small), canned()]
    async with serving(config, *ladder, keys=[key("sk-a", lowest_tier="primary"), key("sk-b")]) as gateway:
        status, _, headers = await ask(gateway.url, "sk-a", **{"x-degradation": "allow"})
        assert (status, headers["x-shed-reason"]) == (503, "no_replica")
        status, _, headers = await ask(gateway.url, "sk-b")
        assert (status, headers["x-served-tier"]) == (200, "small")


async def test_a_changed_list_of_keys_is_taken_over_without_a_restart(engines: Engines, config: Path) -> None:
    async with serving(config, tier("primary", engines.a), keys=[key("sk-a")]) as gateway:
        assert (await ask(gateway.url, "sk-b"))[0] == 401
        spec = gateway.gateway.spec
        new = spec.keys[0].model_copy(update=key("sk-b"))
        await gateway.gateway.reload(spec.model_copy(update={"keys": (new,)}))
        assert (await ask(gateway.url, "sk-b"))[0] == 200
        assert (await ask(gateway.url, "sk-a"))[0] == 401


@pytest.mark.parametrize(("weight", "least"), [(1.0, 0.3), (3.0, 0.4)])
async def test_a_tenant_that_floods_leaves_another_its_share(
    engines: Engines, config: Path, weight: float, least: float
) -> None:
    """Thirty-two clients against eight, on two slots. Without names, the eight would get a fifth."""
    keys = [key("sk-flood"), key("sk-few", weight=weight)]
    async with serving(config, tier("primary", engines.a, slots=2), keys=keys) as gateway:
        served = {"sk-flood": 0, "sk-few": 0}
        until = asyncio.get_running_loop().time() + 1.5

        async def client(secret: str) -> None:
            while asyncio.get_running_loop().time() < until:
                status, _, _ = await ask(gateway.url, secret, tokens=25)
                served[secret] += status == 200

        secrets = ["sk-flood"] * 32 + ["sk-few"] * 8
        await asyncio.gather(*(client(secret) for secret in secrets))
    assert served["sk-few"] / sum(served.values()) >= least
