"""Replicas that stand by: they get nothing until one of the others is lost, or more are to serve."""

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from replicas.autoscaling.rotation import ROTATIONS, RotationRecord
from state_store.memory import MemoryStateStore
from tests.integration.client import Question, ask, assert_whole
from tests.integration.rig import RunningGateway, canned, serving
from tests.integration.supervised import TIER, supervised
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def served_by(gateway: RunningGateway) -> Counter[str]:
    """Who answers twelve requests, all of which get whole answers of the best tier."""
    question = Question(tokens=8)
    answers = await asyncio.gather(*(ask(gateway.url, question) for _ in range(12)))
    for answer in answers:
        assert_whole(question, answer)
        assert answer.headers["x-served-tier"] == "primary"
    return Counter(answer.headers["x-served-replica"] for answer in answers)


async def standing_by(gateway: RunningGateway) -> set[str]:
    tiers = (await gateway.status())["models"]["chat"]["tiers"]
    return {r["replica"] for r in tiers[0]["replicas"] if r["stands_by"]}


async def test_a_standby_steps_in_when_another_is_lost_and_stays(config: Path) -> None:
    store = MemoryStateStore()
    async with (
        supervised(store, "b", "c", "a") as supervisors,
        serving(
            config, TIER | {"in_rotation": 2}, canned(), store=store, health={"interval_s": 0.1}
        ) as gateway,
    ):
        assert set(await served_by(gateway)) == {"b", "c"}
        assert await standing_by(gateway) == {"a"}

        os.kill(supervisors["b"].engine_pid, signal.SIGKILL)
        # No request waits for the one that starts again.
        assert set(await served_by(gateway)) <= {"a", "c"}
        await eventually(lambda: _is(gateway, {"b"}), 20.0)
        assert set(await served_by(gateway)) == {"a", "c"}


async def _is(gateway: RunningGateway, names: set[str]) -> bool:
    return await standing_by(gateway) == names


async def test_the_scaler_says_how_many_serve(config: Path) -> None:
    store = MemoryStateStore()
    async with (
        supervised(store, "a", "b"),
        serving(
            config, TIER | {"in_rotation": 1}, canned(), store=store, health={"interval_s": 0.1}
        ) as gateway,
    ):
        assert set(await served_by(gateway)) == {"a"}
        await store.put(ROTATIONS, "chat/primary", RotationRecord("chat", "primary", 2).to_bytes(), ttl_s=9.0)
        await eventually(lambda: _is(gateway, set()))
        assert set(await served_by(gateway)) == {"a", "b"}
