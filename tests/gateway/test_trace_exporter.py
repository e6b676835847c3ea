"""Requests' spans on their way to a collector: none is kept back, and what can't wait is counted."""

from random import Random

import pytest

from gateway.request import Request
from gateway.specs import TracingSpec
from gateway.trace_context import TraceContext
from gateway.trace_exporter import TOGETHER, WAITING, TraceExporter
from gateway.trail import Step, Trail
from loadtests.collector import Collector
from tests.rig import eventually


def trail(number: int) -> Trail:
    request = Request("chat", {}, "chat", f"request-{number}", 10, received_at=100.0)
    made = Trail(request, lambda _: None, Random(1), None, TraceContext(f"{number + 1:032x}", 7, True))
    made.steps = [Step("decide", 100.0, 100.1, "primary")]
    made.outcome, made.tier, made.ended_at = "served", "primary", 101.0
    return made


@pytest.mark.parametrize("requests", [1, TOGETHER - 1, TOGETHER, 3 * TOGETHER + 5])
async def test_all_spans_arrive_though_no_more_requests_come(requests: int) -> None:
    async with Collector() as collector:
        exporter = TraceExporter(TracingSpec(url=collector.url))
        exporter.start()
        for number in range(requests):
            exporter.take(trail(number))

        async def has_come() -> bool:
            return len(collector.traces) == requests

        await eventually(has_come)
        exporter.stop()
        assert (exporter.exported, exporter.dropped) == (requests, 0)
        ids = {a.value.string_value for spans in collector.traces.values() for a in spans[0].attributes}
        assert {f"request-{number}" for number in range(requests)} <= ids


def test_what_may_not_wait_is_counted_request_by_request() -> None:
    exporter = TraceExporter(TracingSpec(url="http://127.0.0.1:9"))
    for number in range(WAITING + 2 * TOGETHER):
        exporter.take(trail(number))
    assert exporter.dropped == 2 * TOGETHER


def test_what_can_t_be_told_of_a_request_fails_none() -> None:
    exporter = TraceExporter(TracingSpec(url="http://127.0.0.1:9"))
    odd = trail(0)
    odd.steps = [Step("decide", float("nan"), 100.1, "primary")]
    for made in [odd, *map(trail, range(1, TOGETHER))]:
        exporter.take(made)
    assert exporter.dropped == TOGETHER
    exporter.take(trail(TOGETHER))
