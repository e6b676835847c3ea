"""What the simulated engine counts, under vLLM's metric names and for its own /sim/stats."""

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadtests.decoding import Sequence

_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_GAP_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)


class Histogram:
    """A Prometheus histogram of seconds."""

    def __init__(self, name: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def render(self, labels: str) -> list[str]:
        lines = [f"# TYPE {self._name} histogram"]
        total = 0
        edges = [*map(str, map(float, self._bounds)), "+Inf"]
        for le, count in zip(edges, self._counts, strict=True):
            total += count
            lines.append(f'{self._name}_bucket{{{labels},le="{le}"}} {total}')
        lines.append(f"{self._name}_sum{{{labels}}} {self._sum}")
        lines.append(f"{self._name}_count{{{labels}}} {total}")
        return lines


class Telemetry:
    """Counters and timings of one engine since its start or the last reset."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.requests = self.served = self.aborted = self.errors = self.tokens = 0
        self.sequences = self.prompt_tokens = self.cached_tokens = 0
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self._ttft = Histogram("vllm:time_to_first_token_seconds", _TTFT_S)
        self._gap = Histogram("vllm:inter_token_latency_seconds", _GAP_S)
        self._token_mean = Histogram("vllm:request_time_per_output_token_seconds", _GAP_S)
        self._whole = Histogram("vllm:e2e_request_latency_seconds", _REQUEST_S)
        self._queue = Histogram("vllm:request_queue_time_seconds", _REQUEST_S)

    def admitted(self, prompt_tokens: int, cached_tokens: int, queued_s: float) -> None:
        self.sequences += 1
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        self._queue.observe(queued_s)

    def token(self, sequence: "Sequence", now: float) -> None:
        self.tokens += 1
        if sequence.count:
            self._gap.observe(now - sequence.last_token_at)
        else:
            sequence.first_token_at = now
            self._ttft.observe(now - sequence.arrived_at)
        sequence.last_token_at = now

    def ended(self, sequence: "Sequence", reason: str) -> None:
        self.finished[reason] += 1
        self._whole.observe(sequence.last_token_at - sequence.arrived_at)
        if sequence.count > 1:
            decoding_s = sequence.last_token_at - sequence.first_token_at
            self._token_mean.observe(decoding_s / (sequence.count - 1))

    def render(self, model: str, running: int, waiting: int, kv_usage: float) -> str:
        """Prometheus text."""
        labels = f'engine="0",model_name="{model}"'
        gauges = {
            "vllm:num_requests_running": running,
            "vllm:num_requests_waiting": waiting,
            "vllm:kv_cache_usage_perc": kv_usage,
        }
        counters = {
            "vllm:prompt_tokens_total": self.prompt_tokens,
            "vllm:generation_tokens_total": self.tokens,
            "vllm:prefix_cache_queries_total": self.prompt_tokens,
            "vllm:prefix_cache_hits_total": self.cached_tokens,
        }
        lines = _plain("gauge", gauges, labels) + _plain("counter", counters, labels)
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in self.finished.items():
            lines.append(f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}')
        for histogram in (self._ttft, self._gap, self._token_mean, self._whole, self._queue):
            lines += histogram.render(labels)
        return "\n".join(lines) + "\n"


def _plain(kind: str, values: dict[str, int] | dict[str, float], labels: str) -> list[str]:
    lines: list[str] = []
    for name, value in values.items():
        lines += [f"# TYPE {name} {kind}", f"{name}{{{labels}}} {float(value)}"]
    return lines
