"""More than can be served, over HTTP: refused at once and told why, critical first, and an operator's pin."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from tests.integration.client import Answer, Question, ask, assert_refused, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import PATIENT, Json, RunningGateway, all_idle, serving, tier
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG = Question(tokens=300)
"""Six tenths of a second on the engines of these tests."""
NEVER = {"x-degradation": "never"}


async def pin(gateway: RunningGateway, body: Json) -> tuple[int, Json]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{gateway.url}/admin/pin", data=json.dumps(body)) as response,
    ):
        return response.status, await response.json()


async def all_at_once(gateway: RunningGateway, *questions: Question) -> list[Answer]:
    """Asked in this order, ten milliseconds apart."""
    asked = []
    for question in questions:
        asked.append(asyncio.ensure_future(ask(gateway.url, question)))
        await asyncio.sleep(0.01)
    return await asyncio.gather(*asked)


async def test_what_cannot_be_in_time_is_refused_at_once(engines: Engines, tmp_path: Path) -> None:
    slow = {"ttft_s": 0.3, "itl_s": 5.0}
    async with serving(tmp_path / "c.yaml", tier("primary", engines.a, slots=2, slo=slow)) as gateway:
        answers = await all_at_once(gateway, *[LONG] * 8)
        for answer in answers[:2]:
            assert_whole(LONG, answer)
        for answer in answers[2:]:
            assert_refused(answer, 429, "queue_full")
            assert int(answer.headers["retry-after"]) >= 1
        assert await gateway.metric("graceway_shed_total", priority="standard", reason="queue_full") == 6
        assert await gateway.metric("graceway_overhead_seconds_count", stage="refuse") == 6
        await all_idle(gateway, engines.a)


async def test_a_critical_request_goes_before_those_that_wait_longer(
    engines: Engines, tmp_path: Path
) -> None:
    one = tier("primary", engines.a, slots=1, slo=PATIENT)
    urgent = LONG.with_({"x-priority": "critical"})
    order: list[str] = []

    async def noted(gateway: RunningGateway, question: Question, name: str) -> None:
        assert_whole(question, await ask(gateway.url, question))
        order.append(name)

    async with serving(tmp_path / "c.yaml", one) as gateway:
        asked = []
        for question, name in ((LONG, "first"), (LONG, "second"), (LONG, "third"), (urgent, "urgent")):
            asked.append(asyncio.ensure_future(noted(gateway, question, name)))
            await asyncio.sleep(0.05)
        await asyncio.gather(*asked)
        assert order == ["first", "urgent", "second", "third"]


async def test_probes_that_pass_take_nobodys_place(engines: Engines, tmp_path: Path) -> None:
    """Who waits would have to decide again, and might be refused what it had been promised."""
    one = tier("primary", engines.a, slots=1, slo=PATIENT, probe=None)
    async with serving(tmp_path / "c.yaml", one, health={"interval_s": 0.02}) as gateway:
        (replica,) = gateway.gateway._models["chat"].fleet.tiers["primary"].replicas.values()
        passed_before = replica.health.passed
        for answer in await all_at_once(gateway, LONG, LONG):
            assert_whole(LONG, answer)
        assert replica.health.passed > passed_before + 5
        # The first is served; the second waits, and is served.
        assert await gateway.metric("graceway_overhead_seconds_count", stage="decide") == 3


async def test_a_pinned_tier_answers_and_says_so(engines: Engines, tmp_path: Path) -> None:
    tiers = tier("primary", engines.a), tier("small", engines.small)
    question = Question(tokens=5)
    async with serving(tmp_path / "c.yaml", *tiers) as gateway:
        assert await pin(gateway, {"tier": "small", "for_s": 60}) == (
            200,
            {"pinned": "small", "expires_in_s": 60.0},
        )
        pinned = await ask(gateway.url, question)
        assert (pinned.headers["x-served-tier"], pinned.headers["x-degraded"]) == ("small", "pinned")
        unwilling = await ask(gateway.url, question.with_(NEVER))
        assert unwilling.headers["x-served-tier"] == "primary"
        assert await gateway.metric("graceway_tier_share", tier="primary") == 0.0
        assert (await gateway.status())["models"]["chat"]["tiers"][0]["held_because"] == "pinned"

        assert (await pin(gateway, {"tier": None}))[0] == 200
        free = await ask(gateway.url, question)
        assert free.headers["x-served-tier"] == "primary"
        assert "x-degraded" not in free.headers
        assert await gateway.metric("graceway_tier_share", tier="primary") == 1.0


async def test_a_pin_expires_by_itself(engines: Engines, tmp_path: Path) -> None:
    tiers = tier("primary", engines.a), tier("small", engines.small)
    async with serving(tmp_path / "c.yaml", *tiers) as gateway:
        await pin(gateway, {"tier": "small", "for_s": 0.3})
        for _ in range(50):
            answer = await ask(gateway.url, Question(tokens=2))
            if answer.headers["x-served-tier"] == "primary":
                return
            await asyncio.sleep(0.1)
        pytest.fail("it is pinned for ever")


@pytest.mark.parametrize(
    "body",
    [{"tier": "nope"}, {"model": "nope", "tier": "small"}, {"tier": 3}, {"tiers": "small"}, {"share": 0.5}],
)
async def test_a_wrong_pin_is_told_so(engines: Engines, tmp_path: Path, body: Json) -> None:
    async with serving(tmp_path / "c.yaml", tier("primary", engines.a)) as gateway:
        status, answer = await pin(gateway, body)
        assert status == 400
        assert answer["error"]["code"] == "bad_pin"


class TestWhatALowerTierLeavesOut:
    question = Question(tokens=40)

    async def test_is_said_and_ends_the_answer(self, engines: Engines, tmp_path: Path) -> None:
        tiers = tier("primary", engines.a), tier("small", engines.small, gives_up={"max_tokens": 7})
        async with serving(tmp_path / "c.yaml", *tiers) as gateway:
            whole = await ask(gateway.url, self.question)
            assert "x-given-up" not in whole.headers
            await pin(gateway, {"tier": "small", "for_s": 60})
            for stream in (True, False):
                short = await ask(gateway.url, replace(self.question, stream=stream))
                assert short.headers["x-given-up"] == "max_tokens=7"
                assert short.finish_reasons == ["length"]
                assert short.text == replace(self.question, tokens=7).expected.text

    async def test_is_not_left_out_by_another_tier_after_it_failed(
        self, engines: Engines, tmp_path: Path
    ) -> None:
        await engines.b.fault("error", status=500)
        tiers = (
            tier("primary", engines.a),
            tier("short", engines.b, gives_up={"max_tokens": 7}),
            tier("small", engines.small),
        )
        async with serving(tmp_path / "c.yaml", *tiers) as gateway:
            await pin(gateway, {"tier": "short", "for_s": 60})
            answer = await ask(gateway.url, self.question)
            assert answer.headers["x-served-tier"] == "small"
            assert "x-given-up" not in answer.headers
            assert_whole(self.question, answer)


async def test_after_a_total_loss_the_best_tier_has_all_its_traffic_within_five_seconds(
    engines: Engines, tmp_path: Path
) -> None:
    """Streams are cut, requests fail, then everything is gone; who asks goes on asking."""
    tiers = tier("primary", *engines.primary, slots=24), tier("small", engines.small, slots=64)
    health = {"interval_s": 0.5, "timeout_s": 1.0, "up_after": 1}
    question, loop = Question(tokens=5), asyncio.get_running_loop()
    async with serving(tmp_path / "c.yaml", *tiers, health=health) as gateway:
        long = [asyncio.ensure_future(ask(gateway.url, Question(tokens=900))) for _ in range(40)]

        async def all_are_there() -> bool:
            stats = [await engine.stats() for engine in engines.primary]
            return sum(s["running"] + s["waiting"] for s in stats) == 40

        await eventually(all_are_there)
        for engine in engines.primary:
            await engine.kill()
        for answer in await asyncio.gather(*long):
            assert answer.status == 200
        failed = await gateway.metric("graceway_attempts_total", tier="primary")
        assert failed >= 40, "enough to press"
        for engine in engines.primary:
            await engine.restart()

        async def is_back() -> bool:
            return "ready" in [await gateway.state_of(engine) for engine in engines.primary]

        await eventually(is_back)
        since, latest, served = loop.time(), 0.0, 0
        while served < 60:
            answer = await ask(gateway.url, question)
            assert_whole(question, answer)
            is_best = answer.headers["x-served-tier"] == "primary"
            served = served + 1 if is_best else 0
            latest = latest if is_best else loop.time() - since
        assert latest < 5.0
        assert (await gateway.status())["models"]["chat"]["tiers"][0]["allotted"] == 1.0


async def test_a_request_waits_while_its_replica_starts(engines: Engines, tmp_path: Path) -> None:
    await engines.a.fault("unhealthy")
    health = {"interval_s": 0.1, "down_after": 200}
    async with serving(tmp_path / "c.yaml", tier("primary", engines.a), health=health) as gateway:
        question = Question(tokens=5)
        early = asyncio.ensure_future(ask(gateway.url, question))
        brief = await ask(gateway.url, question.with_({"x-request-timeout-seconds": "0.2"}))
        assert_refused(brief, 429, "deadline")
        assert not early.done()
        await engines.a.fault("none")
        assert_whole(question, await asyncio.wait_for(early, 10.0))


async def test_it_goes_down_a_tier_while_its_replica_starts(engines: Engines, tmp_path: Path) -> None:
    await engines.a.fault("unhealthy")
    health = {"interval_s": 0.1, "down_after": 200}
    tiers = tier("primary", engines.a), tier("small", engines.small)
    async with serving(tmp_path / "c.yaml", *tiers, health=health) as gateway:
        answer = await ask(gateway.url, Question(tokens=5))
        assert (answer.headers["x-served-tier"], answer.headers["x-degraded"]) == ("small", "no_replica")
