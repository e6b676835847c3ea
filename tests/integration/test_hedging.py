"""A second replica is asked where a first token is late: whoever has one first answers, the other stops."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.client import Answer, Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import Json, all_idle, attempts, serving, tier

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATIENT: Json = {"ttft_s": 2.0, "itl_s": 0.2}
"""Longer than the second prefill is waited for, so that no failover comes before it."""
LENGTHS = pytest.mark.parametrize(
    ("stream", "tokens"), [(True, 10), (False, 10), (False, 1)], ids=["streamed", "whole", "one token"]
)


async def ask_four(url: str, question: Question) -> list[Answer]:
    return list(await asyncio.gather(*(ask(url, question) for _ in range(4))))


@LENGTHS
async def test_the_faster_one_answers(engines: Engines, config: Path, stream: bool, tokens: int) -> None:
    question = Question("chat", stream, tokens)
    tiers = [tier("primary", *engines.primary, probe=None, slo=PATIENT)]
    async with serving(config, *tiers, retry={"hedge": True}) as gateway:
        await engines.a.fault("hang", after_tokens=0)
        answers = await ask_four(gateway.url, question)
        for answer in answers:
            assert_whole(question, answer)
            assert answer.headers["x-served-replica"] in engines.b.url
        raced = [a for a in answers if len(await attempts(a.request_id, *engines.primary)) == 2]
        assert raced
        assert await gateway.metric("graceway_attempts_total", result="lost_race") == len(raced)
        await all_idle(gateway, *engines.primary)


@LENGTHS
async def test_the_first_verdict_on_a_request_is_the_client_s(
    engines: Engines, config: Path, stream: bool, tokens: int
) -> None:
    question = Question("chat", stream, tokens)
    tiers = [tier("primary", *engines.primary, probe=None, slo=PATIENT)]
    async with serving(config, *tiers, retry={"hedge": True}) as gateway:
        await engines.a.fault("hang", after_tokens=0)
        await engines.b.fault("error", status=422)
        for answer in await ask_four(gateway.url, question):
            assert (answer.status, answer.json["error"]["message"]) == (422, "injected fault")
        assert await gateway.metric("graceway_attempts_total", result="lost_race") > 0
        await all_idle(gateway, *engines.primary)
