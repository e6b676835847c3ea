"""`graceway report` after a real incident, and after the gateway that saw it is gone."""

import asyncio
import sys
from pathlib import Path

import pytest

from loadtests.processes import ROOT, RedisProcess
from tests.integration.client import Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, canned, serving, tier

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUESTION = Question(tokens=3)


async def reported(gateway: RunningGateway, folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy", "report", "--url", gateway.url, "--out", str(folder)),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    return said


async def test_it_is_told_by_a_gateway_that_was_not_there(engines: Engines, tmp_path: Path) -> None:
    tiers = tier("primary", *engines.primary), tier("small", engines.small, quality=0.5), canned()
    async with RedisProcess() as redis:
        async with serving(tmp_path / "one.yaml", *tiers, store=redis.url) as first:
            assert "no incident" in await reported(first, tmp_path / "none")
            assert_whole(QUESTION, await ask(first.url, QUESTION))
            for engine in engines.primary:
                await engine.kill()
            for _ in range(20):
                assert (await ask(first.url, QUESTION)).headers["x-served-tier"] == "small"
            assert await first.metric("graceway_quality_gap") == pytest.approx(0.5 * 20 / 21)
        async with serving(tmp_path / "two.yaml", *tiers, store=redis.url) as second:
            said = await reported(second, tmp_path / "out")
    assert "20 of 21 answers came from lower tiers" in said
    assert "| small | 20 |" in said
    assert "quality 0.5 instead of 1" in said
    assert "primary of chat can't serve" in said or "is down" in said or "is suspect" in said
    assert sorted(p.suffix for p in (tmp_path / "out").iterdir()) == [".html", ".md"]
