"""Each rung is forced and judged by its own promise; the pin never stays."""

import asyncio
import signal
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from loadtests.drill_tiers import Probe, Rung, TiersNotDrilledError, rungs_of, verdict_on
from loadtests.processes import ROOT
from tests.integration.rig import Json, RunningGateway, canned, serving, tier
from tests.rig import EngineProcess, eventually

BEST, SMALL = Rung("chat", "primary", 0, 1.0, 0.2), Rung("chat", "small", 1, 1.0, 0.2)


def probe(tier: str, degraded: str | None = None, ttft_s: float = 0.5, **more: object) -> Probe:
    return Probe(200, tier, degraded, ttft_s, **({"is_whole": True, "gap_s": 0.1} | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rung", "probes", "faults"),
    [
        (BEST, [probe("primary"), probe("primary")], ()),
        (SMALL, [probe("small", "pinned")], ()),
        (SMALL, [], ("nothing was asked",)),
        (SMALL, [probe("primary")], ("primary answered instead",)),
        (SMALL, [Probe(503)], ("refused with 503",)),
        (SMALL, [Probe(0, complaint="no answer (ServerDisconnectedError)")], ("no answer (ServerDisconnectedError)",)),
        (SMALL, [probe("small")], ("the answer does not say that it is a lower tier's",)),
        (BEST, [probe("primary", "pinned")], ("the best tier's answer says it is degraded (pinned)",)),
        (SMALL, [probe("small", "pinned", 0.9), probe("small", "pinned", 1.1)],
         ("a first token came later than the 1 s it promises",)),
        (SMALL, [probe("small", "pinned", gap_s=0.3)], ("tokens came slower than one each 0.2 s",)),
        (SMALL, [probe("small", "pinned", is_whole=False)] * 2, ("an answer was not whole",)),
    ],
)  # fmt: skip
def test_verdicts(rung: Rung, probes: list[Probe], faults: tuple[str, ...]) -> None:
    verdict = verdict_on(rung, probes)
    assert verdict.faults == faults
    assert verdict.passed is (not faults)
    assert ("FAILED" in verdict.text()) is bool(faults)


def test_an_operators_pin_is_not_overridden() -> None:
    held = {"name": "a", "slo_ttft_s": 1, "slo_itl_s": 1, "held_because": "pinned"}
    with pytest.raises(TiersNotDrilledError, match="end it first"):
        rungs_of({"models": {"chat": {"tiers": [held]}}}, None, None)
    with pytest.raises(TiersNotDrilledError, match="no such"):
        rungs_of({"models": {"chat": {"tiers": [held | {"held_because": ""}]}}}, "chat", "b")


async def drilled(gateway: RunningGateway, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtests.drill", "tiers", "--url", gateway.url, *arguments),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip


async def tiers_of(gateway: RunningGateway) -> dict[str, Json]:
    return {t["name"]: t for t in (await gateway.status())["models"]["chat"]["tiers"]}


async def test_rungs_that_hold_and_one_that_does_not(tmp_path: Path) -> None:
    cached = {"name": "cached", "backend": "cache"}
    async with (
        EngineProcess(token_ms=2) as best,
        EngineProcess(token_ms=2, served_model="other") as small,
        # The small tier's server does not know the model that the config names.
        serving(
            tmp_path / "c.yaml", tier("primary", best), tier("small", small), cached, canned()
        ) as gateway,
    ):
        before = await tiers_of(gateway)
        assert [t["proof"] for t in before.values()] == ["never exercised"] * 4
        assert await gateway.metric("graceway_tier_proven") == 0
        process = await drilled(gateway)
        said = (await process.communicate())[0].decode()
        assert process.returncode == 1, said
        assert "cached answered instead" in said
        assert "3 of 4 rungs hold" in said
        after = await tiers_of(gateway)
        assert {name: t["proven"] for name, t in after.items()} == {
            "primary": True, "small": False, "cached": True, "canned": True,
        }  # fmt: skip
        assert after["small"]["proof"] == "its drill failed: cached answered instead"
        assert [t["held_because"] for t in after.values()] == [""] * 4
        assert await gateway.metric("graceway_tier_proven") == 3


async def test_an_interrupted_drill_takes_its_pin_back(tmp_path: Path) -> None:
    async with (
        EngineProcess(token_ms=2) as best,
        EngineProcess(token_ms=2000, served_model="small") as small,
        serving(tmp_path / "c.yaml", tier("primary", best), tier("small", small, probe=None)) as gateway,
    ):
        process = await drilled(gateway, "--tier", "small", "--tokens", "50")

        async def is_pinned() -> bool:
            return (await tiers_of(gateway))["primary"]["allotted"] == 0.0

        await eventually(is_pinned)
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode == 130
        after = await tiers_of(gateway)
        assert (after["primary"]["allotted"], after["primary"]["held_because"]) == (1.0, "")


async def test_without_its_keys_it_says_which_one_is_missing_and_changes_nothing(tmp_path: Path) -> None:
    """A missing key says nothing about a rung: none is marked as failed, and no pin was there to take back."""
    guarded: Json = {"keys": [{"name": "a", "sha256": sha256(b"k").hexdigest()}], "admin_key": "adm"}
    async with (
        EngineProcess(token_ms=2) as best,
        serving(tmp_path / "c.yaml", tier("primary", best), canned(), **guarded) as gateway,
    ):
        for given, wanted in (
            ((), "--admin-key KEY, or GRACEWAY_ADMIN_KEY"),
            (("--admin-key", "adm"), "--key KEY, or GRACEWAY_KEY"),
        ):
            process = await drilled(gateway, *given)
            said = (await process.communicate())[0].decode()
            assert (process.returncode, said.count("\n")) == (2, 1), said
            assert wanted in said
        tiers = await tiers_of(gateway)
        assert [t["proof"] for t in tiers.values()] == ["never exercised"] * 2
        assert [t["held_because"] for t in tiers.values()] == [""] * 2


async def test_of_a_gateway_that_is_gone_it_says_so() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtests.drill", "tiers", "--url", "http://127.0.0.1:9"),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said = (await process.communicate())[0].decode()
    assert process.returncode == 2
    assert said.startswith("no gateway answers at http://127.0.0.1:9 (")
