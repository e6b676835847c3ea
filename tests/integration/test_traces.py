"""Traces as a collector gets them: one a request, whatever happens to it, continued by the replica."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from loadtests.collector import Collector
from tests.gateway.grpc_rig import asks, grpc_at
from tests.integration.client import Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, attempts, canned, serving, tier
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLERS, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{CALLERS}-{PARENT}-01"}
UNSAMPLED = {"traceparent": f"00-{CALLERS}-{PARENT}-00"}


def tracing(collector: Collector, **more: Any) -> dict[str, Any]:
    return {"url": collector.url, **more}


async def trace_of(collector: Collector, trace_id: str) -> list[Span]:
    async def has_come() -> bool:
        return trace_id in collector.traces

    await eventually(has_come)
    return collector.traces[trace_id]


def named(spans: list[Span], name: str) -> list[Span]:
    return [s for s in spans if s.name == name]


async def traceparents(request_id: str, engines: Engines) -> list[str]:
    seen = await attempts(request_id, *engines.primary)
    return [r["headers"].get("traceparent", "") for r in seen]


async def test_a_kill_in_mid_stream_is_one_trace(engines: Engines, config: Path) -> None:
    question = Question(tokens=200)
    async with (
        Collector() as collector,
        serving(config, tier("primary", *engines.primary, probe=None), tracing=tracing(collector)) as gateway,
    ):
        asking = asyncio.ensure_future(ask(gateway.url, question))

        async def runs() -> bool:
            return bool((await engines.a.stats())["running"])

        await eventually(runs)
        await asyncio.sleep(0.1)
        await engines.a.kill()
        answer = await asking
        assert_whole(question, answer)
        trace_id = answer.headers["traceparent"].split("-")[1]
        spans = await trace_of(collector, trace_id)
    assert len(collector.traces) == 1
    root, (first, second) = spans[0], named(spans, "attempt")
    assert (root.name, root.parent_span_id) == ("gateway", b"")
    assert first.status.message in ("cut", "reset")
    assert second.status.code == 0
    (resume,) = root.events
    told = [
        a.value.int_value
        for s in (first, second)
        for a in s.attributes
        if a.key == "gen_ai.usage.output_tokens"
    ]
    assert (resume.name, resume.attributes[0].value.int_value) == ("resume", told[0])
    assert sum(told) == 200
    assert len(named(spans, "decode")) == len(named(spans, "prefill")) == len(named(spans, "decide")) == 2
    # The replica that goes on was given the attempt's own span to go on from.
    (header,) = await traceparents(answer.request_id, engines)
    assert header == f"00-{trace_id}-{second.span_id.hex()}-01"


async def test_a_callers_trace_goes_on(engines: Engines, config: Path) -> None:
    async with (
        Collector() as collector,
        serving(
            config,
            tier("primary", *engines.primary),
            tracing=tracing(collector, ratio=0.0, headers={"x-key": "k"}),
        ) as gateway,
    ):
        kept = await ask(gateway.url, Question(headers=SAMPLED))
        spans = await trace_of(collector, CALLERS)
        assert spans[0].parent_span_id.hex() == PARENT
        assert kept.headers["traceparent"] == SAMPLED["traceparent"]
        assert [h.split("-")[1] for h in await traceparents(kept.request_id, engines)] == [CALLERS]
        assert collector.headers["x-key"] == "k"
        assert collector.resource["service.name"] == "graceway"
        # One that its caller does not sample is passed on as it is; with ratio 0 nothing else is traced.
        passed = await ask(gateway.url, Question(headers=UNSAMPLED))
        assert await traceparents(passed.request_id, engines) == [UNSAMPLED["traceparent"]]
        plain = await ask(gateway.url, Question())
        assert "traceparent" not in plain.headers
        assert await traceparents(plain.request_id, engines) == [""]
    assert set(collector.traces) == {CALLERS}
    assert len(named(collector.traces[CALLERS], "gateway")) == 1


async def test_over_grpc(engines: Engines, config: Path) -> None:
    async with (
        Collector() as collector,
        serving(config, tier("primary", *engines.primary), tracing=tracing(collector)) as gateway,
        grpc_at(gateway) as grpc,
    ):
        await grpc.triton.infer(**asks(Question(stream=False)), headers=SAMPLED)
        spans = await trace_of(collector, CALLERS)
    assert [s.name for s in spans] == ["gateway", "decide", "attempt", "prefill", "decode", "settle"]
    assert spans[0].parent_span_id.hex() == PARENT


async def test_degraded_and_refused_show(engines: Engines, config: Path) -> None:
    async with (
        Collector() as collector,
        serving(
            config, tier("primary", "http://127.0.0.1:9", probe=None), canned(), tracing=tracing(collector)
        ) as gateway,
    ):
        lower = await ask(gateway.url, Question())
        root = (await trace_of(collector, lower.headers["traceparent"].split("-")[1]))[0]
        assert [e.name for e in root.events] == ["degraded"]
        assert root.events[0].attributes[0].value.string_value == lower.headers["x-degraded"]
        await ask(gateway.url, Question(headers={"x-degradation": "never", **SAMPLED}))
        root = (await trace_of(collector, CALLERS))[0]
        assert (root.status.code, root.status.message) == (2, "no_replica")


async def test_the_collector_may_be_gone(engines: Engines, config: Path) -> None:
    question = Question(tokens=5)
    async with (
        Collector() as collector,
        serving(config, tier("primary", *engines.primary), tracing=tracing(collector)) as gateway,
    ):
        collector.status = 503
        assert_whole(question, await ask(gateway.url, question))

        async def is_counted() -> bool:
            return await gateway.metric("graceway_traces_total", result="dropped") == 1

        await eventually(is_counted)
        collector.status = 200
        found = await ask(gateway.url, question)
        await trace_of(collector, found.headers["traceparent"].split("-")[1])


async def test_a_reload_turns_it_on_and_off(engines: Engines, config: Path) -> None:
    tiers = [tier("primary", *engines.primary)]

    async def is_traced(gateway: RunningGateway) -> bool:
        return "traceparent" in (await ask(gateway.url, Question(tokens=3))).headers

    async with Collector() as collector, serving(config, *tiers) as gateway:
        assert not await is_traced(gateway)
        await gateway.reload(*tiers, tracing=tracing(collector))
        assert await is_traced(gateway)
        await gateway.reload(*tiers)
        assert not await is_traced(gateway)

        async def has_come() -> bool:
            return len(collector.traces) == 1

        await eventually(has_come)


async def test_nothing_of_prompts_answers_or_keys(engines: Engines, config: Path) -> None:
    async with (
        Collector() as collector,
        serving(config, tier("primary", *engines.primary), tracing=tracing(collector)) as gateway,
    ):
        question = Question(
            prompt="the secret of the rivers", headers={"authorization": "Bearer a-key-of-mine"}
        )
        answer = await ask(gateway.url, question)
        spans = await trace_of(collector, answer.headers["traceparent"].split("-")[1])
    told = b"".join(s.SerializeToString() for s in spans)
    assert b"secret" not in told
    assert b"a-key-of-mine" not in told
    assert answer.text.encode() not in told
