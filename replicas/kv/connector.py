"""The connector that vLLM loads by name: hands what it is told to the scheduler's or the worker's side.

It starts with any model; where blocks can't be kept (more than one kind of cache, no prefix caching, no address), it says
so once in the engine's log, and the engine computes everything, as without it.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from replicas.kv.engine_metrics import KvPromMetrics, KvStats
from replicas.kv.fingerprint import fingerprint, folder_of, weights_digest
from replicas.kv.paged_cache import PagedCache
from replicas.kv.scheduler_side import Scheduled, SchedulerSide
from replicas.kv.settings import CONNECTOR, MODULE, received, unknown, url_of, why_none, why_unknown
from replicas.kv.step_plan import Loaded, StepPlan
from replicas.kv.worker_side import StepReport, WorkerSide
from state_store.kv.block_format import LOSSY, stored_bytes
from state_store.kv.block_store import BlockStore
from state_store.kv.quantised import can_quantise

_log = logging.getLogger("vllm.graceway.kv")


@dataclass
class PlanMetadata(KVConnectorMetadata):
    """A step's plan, on its way to the workers."""

    plan: StepPlan = field(default_factory=StepPlan)


@dataclass
class LoadsMetadata(KVConnectorWorkerMetadata):
    """How loads went, on its way to the scheduler."""

    loads: list[Loaded]

    def aggregate(self, other: Any) -> "LoadsMetadata":
        return LoadsMetadata([*self.loads, *other.loads])


class GracewayKvConnector(KVConnectorBase_V1):
    """KV blocks in Redis."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config or {}
        self._settings = received(extra)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._report = StepReport()
        url = url_of()
        why_not = why_none(self._settings, url) or _why_not(vllm_config, kv_cache_config)
        self._is_on = not why_not
        if ignored := unknown(extra):
            _log.warning("kv_connector_extra_config has no %s: ignored", ", ".join(ignored))
        if not self._is_on:
            _log.warning("KV blocks are not kept: %s", why_not)
        elif role == KVConnectorRole.SCHEDULER:
            self._scheduler = self._scheduler_side(url)

    @property
    def requires_kv_delivery(self) -> bool:
        # A block that is not saved is computed again.
        return False

    def _scheduler_side(self, url: str) -> SchedulerSide:
        ranks = range(self._vllm_config.parallel_config.world_size)
        spec = self._kv_cache_config.kv_cache_groups[0].kv_cache_spec
        layers = sum(len(group.layer_names) for group in self._kv_cache_config.kv_cache_groups)
        return SchedulerSide(
            BlockStore(url, self._settings.budget, told=_tell_of_redis),
            [self._fingerprint(rank) for rank in ranks],
            spec.block_size,
            spec.page_size_bytes * layers,
            self._settings,
        )

    def _fingerprint(self, rank: int) -> bytes:
        facts = {**_facts(self._vllm_config, self._kv_cache_config), "rank": rank}
        if self._settings.compression in LOSSY:
            # Who keeps blocks without loss is given none that has lost something.
            facts["loss"] = self._settings.compression
        return fingerprint(facts)

    # The worker's side, in the order in which a step calls it.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        if not self._is_on:
            return
        cache = PagedCache(list(kv_caches.values()), self._kv_cache_config.num_blocks)
        if self._settings.compression in LOSSY and not can_quantise(cache.block_bytes, cache.dtype):
            _log.warning("KV blocks of %s are kept as they are", cache.dtype)
        rank = self._vllm_config.parallel_config.rank
        store = BlockStore(url_of(), self._settings.budget, told=_tell_of_redis)
        self._worker = WorkerSide(cache, store, self._fingerprint(rank), self._settings)
        self._tell(stored_bytes(cache.block_bytes, self._settings.compression, cache.dtype))

    def _tell(self, block_bytes: int) -> None:
        """What an operator can't see elsewhere: how far the budget reaches."""
        budget_bytes, strategy = self._settings.budget_bytes, self._settings.strategy
        room = budget_bytes // block_bytes
        tokens = room * self._kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        size_mb = block_bytes / 1e6
        _log.info(
            "KV blocks of %.2f MB are kept in Redis: %s, with room for %d tokens", size_mb, strategy, tokens
        )
        if not room:
            _log.warning(
                "No KV block stays in Redis: one takes %d bytes, and budget_bytes is %d",
                block_bytes,
                budget_bytes,
            )

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        if self._worker is not None:
            self._worker.before_step(_plan_of(kv_connector_metadata))

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None and self._worker.loads_beside_the_model:
            # On a CPU, vLLM calls `start_load_kv` when the step has been computed.
            self._worker.begin_loads(_plan_of(connector_metadata))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None:
            self._worker.begin_loads(_plan_of(self._get_connector_metadata()))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request is run when its load is over."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: blocks are saved when all their layers are computed."""

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.after_step(_plan_of(self._get_connector_metadata()))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is None:
            return None, None
        self._report = self._worker.end_of_step(_plan_of(self._get_connector_metadata()))
        return self._report.sent, self._report.received

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._report.failed_blocks

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        return LoadsMetadata(self._report.loads) if self._report.loads else None

    # The scheduler's side.

    def on_new_request(self, request: Any) -> None:
        if self._scheduler is not None:
            self._scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if self._scheduler is None:
            return 0, False
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        if self._scheduler is None:
            return PlanMetadata()
        preempted = frozenset(scheduler_output.preempted_req_ids or ())
        return PlanMetadata(self._scheduler.take_plan(list(_scheduled(scheduler_output)), preempted))

    def update_connector_output(self, connector_output: Any) -> None:
        if self._scheduler is not None:
            metadata = connector_output.kv_connector_worker_meta
            self._scheduler.step_done(metadata.loads if isinstance(metadata, LoadsMetadata) else [])

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self._scheduler is not None and self._scheduler.finished(request, block_ids), None

    # Both sides.

    def get_kv_connector_stats(self) -> KvStats | None:
        counts: dict[str, float] = {}
        if self._worker is not None:
            counts = self._worker.take_counts()
        elif self._scheduler is not None and (counts := self._scheduler.take_counts()):
            counts |= self._scheduler.figures()
        return KvStats(data=counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvStats:
        return KvStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> KvPromMetrics:
        return KvPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        for side in (self._worker, self._scheduler):
            if side is not None:
                side.close()
        self._worker = self._scheduler = None


# Below another connector, vLLM asks for it by its name alone when it reads what it counted.
KVConnectorFactory.register_connector(CONNECTOR, MODULE, CONNECTOR)


def _tell_of_redis(why: str) -> None:
    if why:
        _log.warning("The Redis of the KV blocks fails: %s", why)
    else:
        _log.info("The Redis of the KV blocks is well again")


def _plan_of(metadata: KVConnectorMetadata) -> StepPlan:
    assert isinstance(metadata, PlanMetadata)
    return metadata.plan


def _scheduled(output: Any) -> Iterable[Scheduled]:
    """Each request's part in the step."""
    state, new_tokens = output.kv_connector_block_state, output.num_scheduled_tokens
    for request in output.scheduled_new_reqs:
        yield _part(request.req_id, request.num_computed_tokens, new_tokens, state)
    cached = output.scheduled_cached_reqs
    for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        yield _part(name, computed, new_tokens, state)


def _part(request: str, computed_tokens: int, new_tokens: dict[str, int], state: Any) -> Scheduled:
    return Scheduled(request, computed_tokens, new_tokens[request], state.get_block_ids(request)[0])


def _why_not(vllm_config: Any, kv_cache_config: Any) -> str:
    """Why this engine's blocks can't be kept; empty when they can."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return f"the model has {len(groups)} kinds of cache"
    if not vllm_config.cache_config.enable_prefix_caching:
        return "prefix caching is off"
    if kv_cache_config.hash_block_size not in (None, groups[0].kv_cache_spec.block_size):
        return "hashes are not one a block"
    if vllm_config.parallel_config.pipeline_parallel_size != 1:
        return "pipeline parallelism splits the layers"
    return why_unknown(vllm_config.cache_config.prefix_caching_hash_algo)


def _facts(vllm_config: Any, kv_cache_config: Any) -> dict[str, object]:
    """What a block depends on besides its tokens."""
    model, cache, parallel = (
        vllm_config.model_config,
        vllm_config.cache_config,
        vllm_config.parallel_config,
    )
    group = kv_cache_config.kv_cache_groups[0]
    folder = folder_of(model.model, model.revision, vllm_config.load_config.download_dir)
    return {
        "vllm": vllm.__version__,
        "model": {k: v for k, v in model.hf_config.to_dict().items() if k != "_name_or_path"},
        "weights": weights_digest(folder) or f"{model.model} {model.revision}",
        "dtype": model.dtype,
        "quantization": model.quantization,
        "cache_dtype": cache.cache_dtype,
        "layout": kv_cache_config.kv_cache_layout,
        "spec": group.kv_cache_spec,
        "layers": group.layer_names,
        "hash": cache.prefix_caching_hash_algo,
        "tensor_parallel": parallel.tensor_parallel_size,
    }
