"""A paid host elsewhere as the last resort: under TLS, with a key, within a budget. The simulated engine is the host."""

import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme

from loadtests.cut_proxy import proxy_to
from tests.integration.client import Question, ask, assert_broken, assert_refused, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import all_idle, attempts, canned, serving, tier
from tests.rig import EngineProcess, eventually, free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]
KEY = "sk-very-secret-9137"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def _host() -> AsyncIterator[EngineProcess]:
    options: Json = {
        "served_model": "theirs",
        "api_key": KEY,
        "token_ids": "refused",
        "token_ms": 2,
        "slots": 64,
    }
    async with EngineProcess(name="host", **options) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="session")
async def host(_host: EngineProcess) -> EngineProcess:
    await _host.reset()
    return _host


def elsewhere(url: str, **more: Any) -> Json:
    base = {"name": "elsewhere", "backend": "openai", "served_model": "theirs", "replicas": [{"url": url}]}
    price = {"prompt": 0, "answer": 1_000_000}
    paid = {"api_key": KEY, "price": price, "budget": {"amount": 100}, "quality": 0.9}
    return {**base, **paid, "slo": {"ttft_s": 20.0, "itl_s": 5.0}, **more}


def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}"


QUESTION = Question(tokens=20)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_it_serves_under_tls_and_pays_by_usage(
    host: EngineProcess, config: Path, tmp_path: Path, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    authority, ca_file = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    async with proxy_to(int(host.url.rpartition(":")[2]), context) as proxy:
        paid = elsewhere(f"https://localhost:{proxy.port}", ca_file=str(ca_file))
        async with serving(config, tier("primary", nowhere()), paid) as gateway:
            question = Question(stream=stream, tokens=20)
            answer = await ask(gateway.url, question)
            assert_whole(question, answer)
            assert answer.models == {"theirs"}
            (seen,) = await attempts(answer.request_id, host)
            assert "return_token_ids" not in seen["json"]
            assert await gateway.metric("graceway_budget_spent", tier="elsewhere") == 20
            assert await gateway.metric("graceway_budget_left", tier="elsewhere") == 80
            shown = [await gateway.get(path) for path in ("/status", "/metrics", "/v1/models", "/")]
            assert KEY.encode() not in b"".join(body for _, body in shown)
            await all_idle(gateway, host)
    assert KEY not in caplog.text


async def test_a_host_that_nobody_vouches_for_gets_nothing(host: EngineProcess, config: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    async with proxy_to(int(host.url.rpartition(":")[2]), context) as proxy:
        paid = elsewhere(f"https://localhost:{proxy.port}")
        async with serving(config, tier("primary", nowhere()), paid) as gateway:
            assert_refused(await ask(gateway.url, QUESTION), 503, "no_replica")
            assert (await host.stats())["requests"] == 0


async def test_when_the_money_is_spent_the_next_tier_answers_and_it_says_so(
    host: EngineProcess, config: Path
) -> None:
    tiers = [tier("primary", nowhere()), elsewhere(host.url), canned()]
    async with serving(config, *tiers) as gateway:
        served = [(await ask(gateway.url, QUESTION)).headers["x-served-tier"] for _ in range(7)]
        assert served == ["elsewhere"] * 5 + ["canned"] * 2
        assert (await host.stats())["requests"] == 5
        status = await gateway.status()
        (paid,) = [t for t in status["models"]["chat"]["tiers"] if t["name"] == "elsewhere"]
        assert not paid["serving"]
        assert "is spent; more in" in paid["reason"]
        assert paid["budget"]["is_spent"]
        assert [
            e for e in status["events"] if "the budget of chat/elsewhere, 100 per day, is spent" in e["text"]
        ]
        assert await gateway.metric("graceway_budget_left", tier="elsewhere") == 0
        await all_idle(gateway, host)


async def test_a_request_that_is_too_dear_goes_on_down_and_a_cheap_one_is_served(
    host: EngineProcess, config: Path
) -> None:
    tiers = [tier("primary", nowhere()), elsewhere(host.url), canned()]
    async with serving(config, *tiers) as gateway:
        dear = await ask(gateway.url, Question(tokens=500))
        assert dear.headers["x-served-tier"] == "canned"
        standing = (await gateway.status())["models"]["chat"]["standing"]
        assert "has too little money left for what is asked of it" in standing["text"]
        assert await gateway.metric("graceway_budget_short", tier="elsewhere") == 1
        assert (await ask(gateway.url, QUESTION)).headers["x-served-tier"] == "elsewhere"
        assert await gateway.metric("graceway_budget_short", tier="elsewhere") == 0
        await all_idle(gateway, host)


async def test_a_reload_keeps_what_was_spent(host: EngineProcess, config: Path) -> None:
    tiers = [tier("primary", nowhere()), elsewhere(host.url)]
    async with serving(config, *tiers) as gateway:
        await ask(gateway.url, QUESTION)
        await gateway.reload(*tiers)
        assert await gateway.metric("graceway_budget_spent", tier="elsewhere") == 20


async def test_the_host_is_asked_nothing_on_its_own_account(host: EngineProcess, config: Path) -> None:
    async with serving(
        config, tier("primary", nowhere()), elsewhere(host.url), health={"interval_s": 0.05}
    ) as gateway:

        async def is_probed() -> bool:
            return await gateway.state_of(host) == "ready"

        await eventually(is_probed)
        assert (await host.stats())["tokens"] == 0
        assert not [r for r in await host.requests() if r["path"].endswith("completions")]


async def test_an_answer_that_breaks_there_is_not_gone_on_with(host: EngineProcess, config: Path) -> None:
    async with serving(config, tier("primary", nowhere()), elsewhere(host.url)) as gateway:
        await host.fault(kind="cut", after_tokens=8)
        assert_broken(QUESTION, await ask(gateway.url, QUESTION))
        assert 7 <= await gateway.metric("graceway_budget_spent", tier="elsewhere") <= 9
        await all_idle(gateway, host)


async def test_where_it_can_it_goes_on_from_text(host: EngineProcess, config: Path) -> None:
    async with serving(config, tier("primary", nowhere()), elsewhere(host.url, resume="text")) as gateway:
        await host.fault(kind="error_event", after_tokens=8, times=1)
        answer = await ask(gateway.url, QUESTION)
        assert_whole(QUESTION, answer)
        first, second = await attempts(answer.request_id, host)
        assert "return_token_ids" not in first["json"]
        assert second["json"]["continue_final_message"] is True
        await all_idle(gateway, host)


@pytest.mark.usefixtures("brief_hope")
async def test_a_stream_of_the_primary_does_not_go_on_there(
    engines: Engines, host: EngineProcess, config: Path
) -> None:
    tiers = [tier("primary", engines.a, probe=None), elsewhere(host.url)]
    async with serving(config, *tiers, health={"up_after": 50}) as gateway:
        await engines.a.fault(kind="cut", after_tokens=8)
        assert_broken(QUESTION, await ask(gateway.url, QUESTION))
        assert not [r for r in await host.requests() if r["path"].endswith("completions")]
