"""Histograms that cost an addition to fill and are put together when they are read: Prometheus' client takes a lock and
walks its buckets for each sample, several times what the rest of a request's books cost.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]
Bucket = tuple[str, float]


class Durations:
    """Samples in seconds, since the start. Filled by one thread."""

    __slots__ = ("_edges_s", "counts", "sum_s")

    def __init__(self, edges_s: Sequence[float]) -> None:
        self._edges_s = edges_s
        self.counts = [0] * (len(edges_s) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self._edges_s, seconds)] += 1
        self.sum_s += seconds


class DurationFamily(Collector):
    """One histogram by its labels."""

    def __init__(self, name: str, help_: str, labels: Labels, edges_s: Sequence[float]) -> None:
        self._name, self._help, self._labels, self._edges_s = name, help_, labels, tuple(edges_s)
        self._children: dict[Labels, Durations] = {}

    def of(self, *labels: str) -> Durations:
        """The samples with these labels. Label sets are bounded, so all are kept."""
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = Durations(self._edges_s)
        return child

    def describe(self) -> Iterable[Metric]:
        return (HistogramMetricFamily(self._name, self._help, labels=list(self._labels)),)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._help, labels=list(self._labels))
        for labels, child in list(self._children.items()):
            family.add_metric(list(labels), buckets_of(self._edges_s, child.counts), child.sum_s)
        yield family


def buckets_of(edges_s: Sequence[float], counts: Sequence[int]) -> list[Bucket]:
    """Prometheus' cumulative buckets. There is one count more than there are edges."""
    names = [*map(floatToGoString, edges_s), "+Inf"]
    return list(zip(names, map(float, accumulate(counts)), strict=True))
