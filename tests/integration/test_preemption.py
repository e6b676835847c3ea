"""Replicas that will be taken away: nobody waits for them, no stream breaks, sessions go elsewhere."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from state_store.memory import MemoryStateStore
from tests.integration.client import Json, Question, ask, assert_whole
from tests.integration.rig import RunningGateway, canned, serving
from tests.integration.supervised import TIER, supervised
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_its_streams_are_whole_and_its_sessions_go_elsewhere(config: Path) -> None:
    store = MemoryStateStore()
    async with (
        supervised(store, "a", "b") as supervisors,
        serving(config, TIER, canned(), store=store, health={"interval_s": 0.1}) as gateway,
    ):
        asked = Question(tokens=4, headers={"x-session-id": "s"})
        home = (await ask(gateway.url, asked)).headers["x-served-replica"]
        [other] = {"a", "b"} - {home}
        short = [asyncio.create_task(ask(gateway.url, Question(tokens=60))) for _ in range(4)]
        # Longer than its grace: the other replica goes on with them.
        long = [asyncio.create_task(ask(gateway.url, Question(tokens=500))) for _ in range(4)]
        await eventually(lambda: _in_flight(gateway, home, 2))
        status, said = await gateway.post("/admin/preempt", body={"replica": home, "grace_s": 3.0})
        assert (status, said) == (200, {"draining": [home], "grace_s": 3.0})
        await eventually(lambda: _is_out(gateway, home))
        assert (await ask(gateway.url, asked)).headers["x-served-replica"] == other
        for tokens, streams in ((60, short), (500, long)):
            for stream in streams:
                answer = await stream
                assert_whole(Question(tokens=tokens), answer)
                assert answer.headers["x-served-tier"] == "primary"
        assert supervisors[home].is_vacated
        assert supervisors[home].engine_pid == 0
        assert not supervisors[other].is_vacated


async def _replica(gateway: RunningGateway, name: str) -> dict[str, Any] | None:
    tiers = gateway.gateway.status()["models"]["chat"]["tiers"]
    return next((r for r in tiers[0]["replicas"] if r["replica"] == name), None)


async def _in_flight(gateway: RunningGateway, name: str, least: int) -> bool:
    found = await _replica(gateway, name)
    return found is not None and found["in_flight"] >= least


async def _is_out(gateway: RunningGateway, name: str) -> bool:
    found = await _replica(gateway, name)
    return found is None or found["state"] == "draining"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"replica": "nobody"}, "no replica that Graceway started is nobody"),
        ({"host": "10.9.9.9"}, "no replica that Graceway started is on 10.9.9.9"),
        ({}, "name a replica, or a host"),
        ({"replica": "a", "host": "b"}, "name a replica, or a host"),
        ({"replica": "a", "grace_s": 0}, "grace_s"),
        ({"replica": "a", "now": True}, "now"),
    ],
)
async def test_a_notice_that_means_nobody_is_refused(config: Path, body: Json, says: str) -> None:
    async with serving(config, TIER, canned()) as gateway:
        status, said = await gateway.post("/admin/preempt", body=body)
    assert status == 400
    assert says in said["error"]["message"]
