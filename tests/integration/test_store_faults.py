"""The store in every kind of trouble that a real Redis has, under load: no request fails, and answers say what is kept.

`python -m loadtests.store_faults` runs the same rows for longer and measures what they cost.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from loadtests.cut_proxy import proxy_to
from loadtests.processes import RedisProcess
from loadtests.store_faults import ROWS, Rig, Row
from tests.integration.client import Answer, Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import serving, tier
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = Question(tokens=6)
SLOW = ("none", "slow")
KEEPS_WRITING = ("none", "slow", "emptied")


@pytest.mark.parametrize(
    "row", [pytest.param(r, id=r.name, marks=[pytest.mark.slow] if r.name in SLOW else []) for r in ROWS]
)
async def test_no_request_fails_and_answers_say_what_is_kept(
    engines: Engines, config: Path, row: Row
) -> None:
    async with RedisProcess() as redis, RedisProcess() as other, proxy_to(redis.port) as way:
        primary = tier("primary", *engines.primary, slots=32)
        async with serving(config, primary, store=f"redis://127.0.0.1:{way.port}") as gateway:
            rig = Rig(gateway.url, redis, way, other)
            assert (await turn(gateway.url, "before")).headers["x-session-durability"] == "stored"
            acting = asyncio.create_task(row.act(rig))  # type: ignore[arg-type]
            await asyncio.sleep(0.05)
            answers = await load(gateway.url)
            await acting
            await row.heal(rig)
            kept = Counter(answer.headers["x-session-durability"] for answer in answers)
            if row.name not in KEEPS_WRITING:
                assert kept["local"] > 0

            async def is_made_up_for() -> bool:
                status = await gateway.status()
                later = await turn(gateway.url, "later")
                return not status["sessions_unsaved"] and later.headers["x-session-durability"] == "stored"

            await eventually(is_made_up_for, 15.0)


async def load(url: str) -> list[Answer]:
    """Six sessions of six turns each, at once."""

    async def hold(session: str) -> list[Answer]:
        return [await turn(url, session) for _ in range(6)]

    held = await asyncio.gather(*(hold(f"s{number}") for number in range(6)))
    return [answer for answers in held for answer in answers]


async def turn(url: str, session: str) -> Answer:
    question = QUESTION.with_({"x-session-id": session})
    answer = await ask(url, question)
    assert_whole(question, answer)
    return answer
