"""What was seen of a system under load: each request from outside, and the gateway's own metrics beside."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from loadtests.client import Difference, Record, complaint
from loadtests.judgement import Judgement

TTFT_SLO_S = 1.0
Metrics = dict[str, float]
"""The sum of each metric over its labels."""


@dataclass(frozen=True)
class Outcome:
    """One request. `due_s` and `ended_s` count from the beginning of the load, `front` is where it was sent."""

    record: Record
    judgement: Judgement
    front: str
    due_s: float
    ended_s: float

    @property
    def priority(self) -> str:
        return self.record.question.headers.get("x-priority", "standard")

    @property
    def is_whole(self) -> bool:
        return self.judgement.kind == "whole"

    @property
    def is_in_time(self) -> bool:
        ttft_s = self.record.ttft_s
        return self.is_whole and ttft_s is not None and ttft_s <= TTFT_SLO_S

    @property
    def stays(self) -> bool:
        """Whether its client meant to wait for the end."""
        return self.record.question.leaves_after_tokens is None

    @property
    def is_degraded(self) -> bool:
        return "x-degraded" in self.record.headers

    @property
    def replica(self) -> str:
        return self.record.headers.get("x-served-replica", "")

    @cached_property
    def difference(self) -> Difference:
        return Difference() if self.is_whole else self.record.difference()

    def complaint(self) -> dict[str, object]:
        """What one has to know of it when it went wrong."""
        told = complaint(self.record, self.record.due_at - self.due_s)
        return {"judgement": f"{self.judgement.kind}: {self.judgement.why}", "front": self.front, **told}


@dataclass(frozen=True, slots=True)
class Scrape:
    """The gateway's metrics at one moment; None where it did not answer."""

    at_s: float
    metrics: Metrics | None


@dataclass(frozen=True)
class Observed:
    """One run, or a part of one. Times are seconds since the load began."""

    outcomes: tuple[Outcome, ...]
    scrapes: tuple[Scrape, ...]
    fault_s: float
    heal_s: float
    replicas: tuple[str, ...] = ()
    fronts: tuple[str, ...] = ()
    still_running: float | None = None
    """Requests that gateway and engines still count when all clients are done; None where nobody can tell."""
    notes: tuple[str, ...] = field(default=())

    def staying(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.stays]

    def due(self, begins_s: float, ends_s: float = float("inf")) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if begins_s <= outcome.due_s < ends_s]

    def values(self, metric: str) -> list[float]:
        """A metric over time, where it could be read."""
        return [s.metrics[metric] for s in self.scrapes if s.metrics is not None and metric in s.metrics]

    def grown(self, metric: str) -> float | None:
        """How much a counter grew. One that has counted nothing yet is not exposed."""
        read = [s.metrics for s in self.scrapes if s.metrics is not None]
        if not read:
            return None
        return read[-1].get(metric, 0.0) - read[0].get(metric, 0.0)

    def before_the_fault(self) -> "Observed":
        """The part that is the control when there is no second system beside."""
        return self._part(lambda at_s: at_s < self.fault_s, notes=())

    def from_the_fault(self) -> "Observed":
        return self._part(lambda at_s: at_s >= self.fault_s, self.notes)

    def _part(self, holds: Callable[[float], bool], notes: tuple[str, ...]) -> "Observed":
        return Observed(
            tuple(outcome for outcome in self.outcomes if holds(outcome.due_s)),
            tuple(scrape for scrape in self.scrapes if holds(scrape.at_s)),
            self.fault_s,
            self.heal_s,
            self.replicas,
            self.fronts,
            self.still_running,
            notes,
        )


def share(outcomes: Sequence[Outcome], holds: Callable[[Outcome], bool]) -> float | None:
    """Of the outcomes; None where there is none."""
    return sum(map(holds, outcomes)) / len(outcomes) if outcomes else None


def parse_metrics(text: str) -> Metrics:
    """Prometheus' text, each metric summed over its labels."""
    found: Metrics = {}
    for line in text.splitlines():
        if not line or line[0] == "#":
            continue
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0]
        found[name] = found.get(name, 0.0) + float(value)
    return found
