"""What lower tiers leave out of a request, seen by a client: which turns are gone, and that the answer says so."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from loadtests.tokens import prompt_ids
from tests.integration.client import Answer, Question, ask, assert_refused
from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, all_idle, attempts, canned, serving, tier
from tests.rig import EngineProcess, eventually, free_port

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]
WINDOW = 256


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def narrow() -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(name="narrow", served_model="small", token_ms=2, slots=8, max_model_len=WINDOW)
    async with engine:
        yield engine


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def _as_new(narrow: EngineProcess) -> None:
    await narrow.reset()


def conversation(turns: int, words: int, last: str = "And then?") -> list[Json]:
    messages: list[Json] = [{"role": "system", "content": "Be kind."}]
    for n in range(turns):
        messages += [
            {"role": "user", "content": f"Turn {n}." + " river" * words},
            {"role": "assistant", "content": " rain" * words},
        ]
    return [*messages, {"role": "user", "content": last}]


def nowhere() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_the_oldest_turns_are_left_out(narrow: EngineProcess, config: Path, stream: bool) -> None:
    tiers = [tier("primary", nowhere()), tier("small", narrow, gives_up={"context": True})]
    asked = conversation(20, 10)
    async with serving(config, *tiers) as gateway:
        answer = await ask(gateway.url, Question(stream=stream, tokens=20).with_(messages=asked))
        assert answer.status == 200, answer.raw
        (seen,) = await attempts(answer.request_id, narrow)
        left = seen["json"]["messages"]
        assert left[0] == asked[0]
        assert left[-1] == asked[-1]
        assert left[1:] == asked[-len(left) + 1 :]
        out = (len(asked) - len(left)) // 2
        assert answer.headers["x-given-up"] == f"context={out} turns out"
        assert answer.headers["x-degraded"]
        assert len(prompt_ids(left)) + 20 <= WINDOW
        one_more = [asked[0], *asked[-len(left) - 1 :]]
        assert len(prompt_ids(one_more)) + 20 > WINDOW, "the fewest turns"
        assert await gateway.metric("graceway_given_up_total", tier="small", what="context") == 1
        assert (await gateway.status())["models"]["chat"]["given_up_60s"] == {"context": 1}
        await all_idle(gateway, narrow)


async def test_the_best_tier_gets_all_of_it(engines: Engines, narrow: EngineProcess, config: Path) -> None:
    tiers = [tier("primary", engines.a), tier("small", narrow, gives_up={"context": True})]
    asked = conversation(20, 10)
    async with serving(config, *tiers) as gateway:
        answer = await ask(gateway.url, Question(tokens=20).with_(messages=asked))
        (seen,) = await attempts(answer.request_id, engines.a)
        assert seen["json"]["messages"] == asked
        assert "x-given-up" not in answer.headers


async def test_what_fits_is_left_alone_and_together_with_coverage(
    narrow: EngineProcess, config: Path
) -> None:
    tiers = [tier("primary", nowhere()), tier("small", narrow, gives_up={"context": True, "max_tokens": 8})]
    async with serving(config, *tiers) as gateway:
        short = await ask(gateway.url, Question(tokens=8).with_(messages=conversation(1, 1)))
        assert "x-given-up" not in short.headers
        long = await ask(gateway.url, Question(tokens=50).with_(messages=conversation(20, 10)))
        assert long.headers["x-given-up"].startswith("max_tokens=8, context=")
        assert long.finish_reasons == ["length"]


LONG = Question(stream=False, tokens=20).with_(messages=conversation(0, 0, "river" * 200))


async def test_a_last_turn_that_is_too_long_goes_on_down(narrow: EngineProcess, config: Path) -> None:
    tiers = [tier("primary", nowhere()), tier("small", narrow, gives_up={"context": True}), canned()]
    async with serving(config, *tiers) as gateway:
        answer = await ask(gateway.url, LONG)
        assert answer.headers["x-served-tier"] == "canned"
        await all_idle(gateway, narrow)


async def test_one_that_another_tier_could_have_is_a_503_that_says_so(
    narrow: EngineProcess, config: Path
) -> None:
    tiers = [tier("primary", nowhere()), tier("small", narrow, gives_up={"context": True})]
    async with serving(config, *tiers) as gateway:
        answer = await ask(gateway.url, LONG)
        assert_refused(answer, 503, "no_replica")
        assert "the window of small has 256" in answer.json["error"]["message"]
        assert (await narrow.stats())["aborted"] == 0
        await all_idle(gateway, narrow)


async def test_one_that_no_tier_could_have_is_the_callers_mistake(
    narrow: EngineProcess, config: Path
) -> None:
    best = tier("primary", nowhere(), max_model_len=512)
    async with serving(config, best, tier("small", narrow, gives_up={"context": True})) as gateway:
        answer = await ask(gateway.url, LONG)
        assert answer.status == 400
        error = answer.json["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
        assert "the window of small has 256" in error["message"]
        await all_idle(gateway, narrow)


async def test_a_window_is_known_when_the_replica_that_told_it_is_gone(
    narrow: EngineProcess, config: Path
) -> None:
    small = tier("small", narrow, gives_up={"context": True})
    async with (
        EngineProcess(max_model_len=512) as wide,
        serving(config, tier("primary", wide), small) as gateway,
    ):
        assert (await ask(gateway.url, Question(stream=False))).headers["x-served-tier"] == "primary"
        await gateway.reload(tier("primary", nowhere()), small)
        answer = await ask(gateway.url, LONG)
        assert (answer.status, answer.json["error"]["code"]) == (400, "context_length_exceeded")
        await all_idle(gateway, narrow)


async def test_a_broken_stream_goes_on_in_the_narrow_tier_with_fewer_turns(
    engines: Engines, narrow: EngineProcess, config: Path
) -> None:
    tiers = [
        tier("primary", engines.a, probe=None),
        tier("small", narrow, probe=None, gives_up={"context": True}),
    ]
    async with serving(config, *tiers, health={"up_after": 50}) as gateway:
        await engines.a.fault(kind="cut", after_tokens=10)
        answer = await ask(gateway.url, Question(tokens=30).with_(messages=conversation(20, 10)))
        assert answer.dones == 1
        assert answer.finish_reasons == ["length"]
        assert {s["given_up"] for s in answer.spliced} == {answer.spliced[0]["given_up"]}
        assert answer.spliced[0]["given_up"].startswith("context=")
        (seen,) = await attempts(answer.request_id, narrow)
        assert seen["json"]["messages"][0]["role"] == "system"
        assert seen["json"]["messages"][-1]["role"] == "assistant"
        await all_idle(gateway, engines.a, narrow)


# what no replica answers


SHA = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"  # of `password`
OTHER_SHA = "8c6976e5b5410415bde908bd4dee15dfb167a9c873fc4bb8a81f6f2ab448a918"  # of `admin`
KEYS = [{"name": "a", "sha256": SHA}, {"name": "b", "sha256": OTHER_SHA}]
A, B = {"authorization": "Bearer password"}, {"authorization": "Bearer admin"}
HIGH = "Please tell me how high the highest mountain of the Alps is in metres"


async def test_near_answers_of_the_same_tenant_alone(
    engines: Engines, narrow: EngineProcess, config: Path
) -> None:
    near = {"url": narrow.url, "served_model": "small", "min_similarity": 0.9, "timeout_s": 5.0}
    tiers = [tier("primary", engines.a), {"name": "cached", "backend": "cache", "near": near}, canned()]
    async with serving(config, *tiers, keys=KEYS) as gateway:
        first = await ask(gateway.url, Question(stream=False, tokens=8, prompt=HIGH, headers=A))
        assert first.headers["x-served-tier"] == "primary"

        async def is_entered() -> bool:
            return any(r["path"] == "/v1/embeddings" for r in await narrow.requests())

        await eventually(is_entered)
        await engines.a.kill()
        alike = Question(stream=True, tokens=8, prompt=HIGH.lower() + ", please?")
        answer = await ask(gateway.url, alike.with_(A))
        assert answer.headers["x-served-tier"] == "cached"
        assert answer.text == first.text
        assert re.fullmatch(r"near_match=0\.9\d\d", answer.headers["x-given-up"])
        assert int(answer.headers["age"]) >= 0
        assert await gateway.metric("graceway_given_up_total", what="near_match") == 1
        exact = await ask(gateway.url, Question(stream=False, tokens=8, prompt=HIGH, headers=A))
        assert exact.headers["x-served-tier"] == "cached"
        assert "x-given-up" not in exact.headers
        for question in (alike, Question(tokens=8, prompt=HIGH)):
            other = await ask(gateway.url, question.with_(B))
            assert other.headers["x-served-tier"] == "canned"


async def test_a_hanging_embedding_server_costs_its_timeout_once(
    engines: Engines, narrow: EngineProcess, config: Path
) -> None:
    near = {"url": narrow.url, "served_model": "small", "min_similarity": 0.9, "timeout_s": 0.3}
    tiers = [tier("primary", engines.a), {"name": "cached", "backend": "cache", "near": near}, canned()]
    async with serving(config, *tiers) as gateway:
        await ask(gateway.url, Question(stream=False, tokens=8, prompt=HIGH))

        async def is_entered() -> bool:
            return any(r["path"] == "/v1/embeddings" for r in await narrow.requests())

        await eventually(is_entered)
        await engines.a.kill()
        await narrow.fault(kind="hang")
        alike = Question(stream=False, tokens=8, prompt=HIGH.lower() + ", please?")
        before = (await narrow.stats())["requests"]
        for _ in range(10):
            assert (await ask(gateway.url, alike)).headers["x-served-tier"] == "canned"
        assert (await narrow.stats())["requests"] - before <= 3
        await narrow.reset()

        async def is_found() -> bool:
            return (await ask(gateway.url, alike)).headers["x-served-tier"] == "cached"

        await eventually(is_found, 15.0)


async def test_a_canned_text_in_the_callers_language_says_what_it_lacks(config: Path) -> None:
    tiers = [tier("primary", nowhere()), canned() | {"texts": {"de": "Bis später."}}]
    async with serving(config, *tiers) as gateway:
        german = Question(stream=False).with_({"accept-language": "de-CH,en;q=0.5"}, n=3, logprobs=True)
        answer = await ask(gateway.url, german)
        assert answer.text == "Bis später."
        assert answer.headers["x-given-up"] == "n=1, logprobs"
        assert (await ask(gateway.url, Question(stream=False))).text == "Please come back later."


# latency


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def steady() -> AsyncIterator[EngineProcess]:
    """Two slots, a fifth of a second an answer."""
    async with EngineProcess(name="steady", served_model="m", token_ms=20, slots=2) as engine:
        yield engine


async def burst(gateway: RunningGateway, priority: str, count: int) -> list[Answer]:
    question = Question(tokens=10).with_({"x-priority": priority})
    return list(await asyncio.gather(*(ask(gateway.url, question) for _ in range(count))))


async def test_sheddable_requests_wait_longer_where_they_are_promised_less(
    steady: EngineProcess, config: Path
) -> None:
    slo = {"ttft_s": 0.4, "itl_s": 5.0}
    async with serving(config, tier("primary", steady, slots=2, slo=slo, probe=None)) as gateway:
        # What an answer takes is learnt first.
        for _ in range(6):
            assert (await burst(gateway, "sheddable", 1))[0].status == 200
        refused = [a for a in await burst(gateway, "sheddable", 16) if a.status == 429]
        assert len(refused) >= 6
        assert not any("x-given-up" in a.headers for a in refused)
        await all_idle(gateway, steady)
        patient = tier("primary", steady, slots=2, slo={**slo, "sheddable_ttft_s": 30.0}, probe=None)
        await gateway.reload(patient)
        late = await burst(gateway, "sheddable", 16)
        assert [a.status for a in late] == [200] * 16
        told = [a.headers["x-given-up"] for a in late if "x-given-up" in a.headers]
        assert len(told) >= 6
        assert all(re.fullmatch(r"latency=\d+\.\d s", t) for t in told)
        assert await gateway.metric("graceway_given_up_total", what="latency") == len(told)
        await all_idle(gateway, steady)
        assert any(a.status == 429 for a in await burst(gateway, "standard", 16)), (
            "others are refused in time"
        )
        await all_idle(gateway, steady)
