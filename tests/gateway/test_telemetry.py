"""What is counted, as Prometheus reads it."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry import Sample, Telemetry

LABELS = {"model": "m", "tier": "t"}


def samples(telemetry: Telemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(telemetry.exposition().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def value(telemetry: Telemetry, name: str, **labels: str) -> float | None:
    return samples(telemetry).get((name, tuple(sorted(labels.items()))))


def test_counters() -> None:
    telemetry = Telemetry()
    telemetry.count(telemetry.requests, "m", "t", "standard", "served")
    telemetry.count(telemetry.requests, "m", "t", "standard", "served")
    telemetry.count(telemetry.tokens, "m", "t", by=41)
    labels = {**LABELS, "priority": "standard", "outcome": "served"}
    assert value(telemetry, "graceway_requests_total", **labels) == 2
    assert value(telemetry, "graceway_tokens_total", **LABELS) == 41


def test_histograms() -> None:
    telemetry = Telemetry()
    for seconds in (0.004, 0.3, 0.3, 99.0):
        telemetry.ttft_s.of("m", "t", "standard").add(seconds)
    labels = {**LABELS, "priority": "standard"}
    assert value(telemetry, "graceway_ttft_seconds_count", **labels) == 4
    assert value(telemetry, "graceway_ttft_seconds_sum", **labels) == pytest.approx(99.604)
    for edge, count in (("0.01", 1), ("0.35", 3), ("60.0", 3), ("+Inf", 4)):
        assert value(telemetry, "graceway_ttft_seconds_bucket", **labels, le=edge) == count


def test_gauges_are_read_when_scraped() -> None:
    now = {"a": 1.0, "b": 2.0}

    def read() -> Iterator[Sample]:
        for replica, ready in now.items():
            yield "graceway_replica_ready", "Help", {**LABELS, "replica": replica}, ready
        yield "graceway_store_available", "Help", {}, 0.0

    telemetry = Telemetry(read)
    assert value(telemetry, "graceway_replica_ready", **LABELS, replica="b") == 2.0
    assert value(telemetry, "graceway_store_available") == 0.0
    del now["b"]
    assert value(telemetry, "graceway_replica_ready", **LABELS, replica="b") is None
    assert value(telemetry, "graceway_replica_ready", **LABELS, replica="a") == 1.0
    assert telemetry.exposition().count(b"# TYPE graceway_replica_ready gauge") == 1


def test_two_gateways_in_a_process_do_not_share_counts() -> None:
    one, two = Telemetry(), Telemetry()
    one.count(one.shed, "m", "standard", "queue_full")
    assert value(two, "graceway_shed_total", model="m", priority="standard", reason="queue_full") is None
