"""What the connector counts, in the form in which vLLM carries it to its own `/metrics`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS: Mapping[str, str] = {
    "restore": "Requests whose blocks were loaded, as that was judged faster",
    "recompute": "Requests whose blocks were computed, though Redis had them",
    "loads": "Loads that ended",
    "loaded_bytes": "Bytes of good blocks that were loaded",
    "load_seconds": "Seconds that loads took",
    "missed_absent": "Blocks that were gone when they were to be loaded",
    "missed_truncated": "Blocks that were too short",
    "missed_foreign": "Blocks of another model, layout or version",
    "missed_corrupted": "Blocks whose checksum was wrong",
    "missed_unavailable": "Blocks that Redis did not give in time",
    "saved_blocks": "Blocks that were written",
    "saved_bytes": "Bytes that were written",
    "save_cpu_seconds": "CPU seconds that writing them took",
    "save_dropped_blocks": "Blocks that were not written because too many waited",
    "save_failed_blocks": "Blocks that Redis did not take",
    "evicted_blocks": "Blocks that had to make room",
    "unacknowledged_turns": "Turns whose blocks could not be confirmed to be stored",
}
GAUGES: Mapping[str, str] = {
    "bandwidth_bytes_per_s": "Measured when blocks were loaded; 0 before the first time",
    "t0_seconds": "Measured: the least that a load takes",
    "prefill_tokens_per_s": "Measured, at the longest context that was computed",
}


@dataclass
class KvStats(KVConnectorStats):
    """Sums by name, and the latest figures."""

    def reset(self) -> None:
        self.data: dict[str, float] = {}

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: Any) -> "KvStats":
        for name, value in other.data.items():
            self.data[name] = value if name in GAUGES else self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)


class KvPromMetrics(KVConnectorPromMetrics):
    """The metrics `graceway_kv_…` of one engine server."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._counter_cls(name=f"graceway_kv_{name}", documentation=text, labelnames=labelnames)
            for name, text in COUNTERS.items()
        }
        self._gauges = {
            name: self._gauge_cls(
                name=f"graceway_kv_{name}",
                documentation=text,
                labelnames=labelnames,
                multiprocess_mode="mostrecent",
            )
            for name, text in GAUGES.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name].labels(*labels).inc(value)
            elif name in self._gauges:
                self._gauges[name].labels(*labels).set(value)
