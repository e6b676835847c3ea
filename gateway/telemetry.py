"""What Graceway counts and times, under Prometheus' conventions. Label sets are bounded: all of them come from the config."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.durations import DurationFamily, buckets_of
from gateway.policy.quantile import EDGES_S, DurationQuantiles

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
ATTEMPT_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 600.0)
STORE_BUCKETS_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
OVERHEAD_BUCKETS_S = (
    2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip

Sample = tuple[str, str, dict[str, str], float]
"""Metric name, help, labels, value."""

Samples = tuple[str, str, dict[str, str], DurationQuantiles]
"""Metric name, help, labels, and the samples that something else keeps anyway."""


class Telemetry:
    """All counters and histograms, in a registry of their own. Gauges are read from the fleet when scraped."""

    def __init__(
        self,
        gauges: Callable[[], Iterable[Sample]] = tuple,
        spans: Callable[[], Iterable[Samples]] = tuple,
    ) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter(
            "graceway_requests", "Requests by what became of them",
            ("model", "tier", "priority", "outcome"), registry=registry,
        )  # fmt: skip
        self.attempts = Counter(
            "graceway_attempts", "Attempts on replicas by how they ended",
            ("model", "tier", "replica", "result"), registry=registry,
        )  # fmt: skip
        self.degraded = Counter(
            "graceway_degraded",
            "Answers of a lower tier, by reason",
            ("model", "tier", "reason"),
            registry=registry,
        )
        self.given_up = Counter(
            "graceway_given_up",
            "Answers to less than was asked, by what was left out",
            ("model", "tier", "what"),
            registry=registry,
        )
        self.features = Counter(
            "graceway_features",
            "Context features of requests, by where their text came from",
            ("model", "feature", "source"),
            registry=registry,
        )
        self.shed = Counter(
            "graceway_shed", "Refusals by reason", ("model", "priority", "reason"), registry=registry
        )
        self.resumes = Counter(
            "graceway_resumes",
            "Streams that broke, by what became of them",
            ("model", "result"),
            registry=registry,
        )
        self.kv_turns = Counter(
            "graceway_kv_turns",
            "Whole answers of tiers that keep KV blocks, by what outlives their replica",
            ("model", "tier", "durability"),
            registry=registry,
        )
        self.tokens = Counter(
            "graceway_tokens",
            "Generated tokens, those of abandoned streams too",
            ("model", "tier"),
            registry=registry,
        )
        self.ttft_s = self._durations(
            "graceway_ttft_seconds",
            "Arrival to first token, failed attempts included",
            ("model", "tier", "priority"),
            TTFT_BUCKETS_S,
        )
        self.queue_s = self._durations(
            "graceway_queue_seconds",
            "Time in the gateway's queue",
            ("model", "tier", "priority"),
            TTFT_BUCKETS_S,
        )
        self.attempt_s = self._durations(
            "graceway_attempt_seconds",
            "A whole answer of a replica, from its first byte sent to its last one read",
            ("model", "tier", "replica"),
            ATTEMPT_BUCKETS_S,
        )
        self.overhead_s = self._durations(
            "graceway_overhead_seconds",
            "The gateway's own work: parse, decide, dispatch (from the decision to the replica's socket), refuse (all of it)",
            ("model", "stage"),
            OVERHEAD_BUCKETS_S,
        )
        self.store_s = self._durations(
            "graceway_store_seconds",
            "A call to the state store, those without an answer too",
            (),
            STORE_BUCKETS_S,
        )
        self.loop_lag_s = self._durations(
            "graceway_loop_lag_seconds", "How late the event loop runs what is due", (), OVERHEAD_BUCKETS_S
        )
        self.states = Counter(
            "graceway_replica_transitions", "Changes of a replica's health or breaker",
            ("model", "tier", "replica", "state"), registry=registry,
        )  # fmt: skip
        self.turns = Counter(
            "graceway_session_turns", "Turns of sessions, by where they were known when their answer began",
            ("model", "durability"), registry=registry,
        )  # fmt: skip
        self.epochs = Counter(
            "graceway_session_epochs", "Sessions that began, or began anew as turns of theirs may be forgotten",
            ("model", "cause"), registry=registry,
        )  # fmt: skip
        registry.register(_Gauges(gauges))
        registry.register(_Spans(spans))
        self._uncounted: dict[tuple[Counter, tuple[str, ...]], float] = {}
        """What has been added since somebody looked: a counter's lock costs more than all else that is done here."""

    def count(self, metric: Counter, *labels: str, by: float = 1.0) -> None:
        key = metric, labels
        self._uncounted[key] = self._uncounted.get(key, 0.0) + by

    def _count_up(self) -> None:
        uncounted, self._uncounted = self._uncounted, {}
        for (metric, labels), by in uncounted.items():
            metric.labels(*labels).inc(by)

    def _durations(
        self, name: str, help_: str, labels: tuple[str, ...], edges_s: tuple[float, ...]
    ) -> DurationFamily:
        family = DurationFamily(name, help_, labels, edges_s)
        self.registry.register(family)
        return family

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        self._count_up()
        return generate_latest(self.registry)


class _Gauges(Collector):
    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, help_, labels, value in self._read():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = families.setdefault(name, kind(name, help_, labels=list(labels)))
            family.add_metric(list(labels.values()), value)
        yield from families.values()


class _Spans(Collector):
    """Histograms that are kept for other reasons, such as a replica's times between tokens."""

    def __init__(self, read: Callable[[], Iterable[Samples]]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, HistogramMetricFamily] = {}
        for name, help_, labels, samples in self._read():
            family = families.setdefault(name, HistogramMetricFamily(name, help_, labels=list(labels)))
            family.add_metric(list(labels.values()), buckets_of(EDGES_S, samples.counts()), samples.sum_s)
        yield from families.values()
