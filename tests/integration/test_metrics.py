"""What `/metrics` and `/status` tell of a gateway at work, and that the documents list all of it."""

import asyncio
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtests.collector import Collector
from loadtests.processes import RedisProcess
from tests.integration.client import Question, ask
from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, canned, serving, tier
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

SOURCES = sorted((Path(__file__).parents[2] / "gateway").glob("*.py"))
LISTED = Path(__file__).parents[2] / "docs" / "metrics.md"


async def exposed(gateway: RunningGateway) -> dict[str, set[str]]:
    """Each metric's labels, by its name as it is asked for."""
    _, body = await gateway.get("/metrics")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(body.decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        if not name.endswith("_created"):
            labels = {label for s in family.samples for label in s.labels if not s.name.endswith("_created")}
            found.setdefault(name, set()).update(labels - {"le"})
    return found


async def at_work(gateway: RunningGateway, engines: Engines) -> None:
    """Answers, a refusal, a wait, a stream that breaks and goes on."""
    await engines.a.fault("cut", after_tokens=5)
    await asyncio.gather(*(ask(gateway.url, Question(tokens=40)) for _ in range(20)))
    await engines.a.fault("none")
    await ask(gateway.url, Question(headers={"x-request-timeout-seconds": "0.001"}))
    for engine in engines.all:
        await engine.fault("error", status=500)
    await ask(gateway.url, Question())
    await asyncio.sleep(0.5)


async def test_the_documents_list_what_there_is(engines: Engines, config: Path) -> None:
    listed = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(
            r"^\| `(graceway_\w+)` \| ([^|]*) \|", LISTED.read_text(), re.MULTILINE
        )
    }
    tiers = (
        tier("primary", *engines.primary, slots=4),
        tier("small", engines.small, gives_up={"max_tokens": 9}),
        canned(),
    )
    async with (
        Collector() as collector,
        serving(config, *tiers, tracing={"url": collector.url}) as gateway,
    ):
        await at_work(gateway, engines)
        found = await exposed(gateway)
    # Some have samples only where there are budgets, or drills: the source names them all.
    named = set(re.findall(r'"(graceway_\w+)"', "".join(p.read_text() for p in SOURCES)))
    plain = {name.removesuffix("_total") for name in listed}
    assert {name.removesuffix("_total") for name in named} == plain, "in the code or in docs/metrics.md alone"
    assert found.keys() <= listed.keys()
    for name, labels in found.items():
        assert not labels or labels == listed[name], name


async def test_stragglers_show_side_by_side(engines: Engines, config: Path) -> None:
    await engines.b.fault("slow", factor=50.0)
    # An outlier as far off as this one would be ejected, and one that is out has no speed to compare.
    health = {"max_ejected_share": 0.0}
    async with serving(config, tier("primary", *engines.primary, probe=None), health=health) as gateway:
        await asyncio.gather(*(ask(gateway.url, Question(tokens=15)) for _ in range(12)))
        replicas = await gateway.replicas()
        quick, slow = (replicas[e.url] for e in engines.primary)
        assert quick["lags"] == []
        assert "gap" in slow["lags"]
        assert slow["spans"]["gap"]["p50_s"] > 1.5 * quick["spans"]["gap"]["p50_s"]
        for replica in (quick, slow):
            for span in replica["spans"].values():
                assert 0 < span["p50_s"] <= span["p99_s"]
        name = slow["replica"]
        gaps = await gateway.metric("graceway_token_gap_seconds_count", replica=name)
        assert gaps >= 14
        assert await gateway.metric("graceway_prefill_seconds_count", replica=name) > 0


async def test_overhead_and_the_store_are_timed(engines: Engines, config: Path) -> None:
    async with (
        RedisProcess() as redis,
        serving(config, tier("primary", *engines.primary), store=redis.url) as gateway,
    ):
        await asyncio.gather(*(ask(gateway.url, Question(tokens=5)) for _ in range(6)))
        for stage in ("parse", "decide", "dispatch"):
            assert await gateway.metric("graceway_overhead_seconds_count", stage=stage) >= 6
            assert 0 < await gateway.metric("graceway_overhead_seconds_sum", stage=stage) < 6
        assert await gateway.metric("graceway_store_seconds_count") > 0

        async def is_measured() -> bool:
            return await gateway.metric("graceway_loop_lag_seconds_count") >= 2

        await eventually(is_measured)
