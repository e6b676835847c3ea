"""The worker's side: has loads and saves of each step done, and says what became of them."""

import threading
from collections import Counter
from dataclasses import dataclass, field

from replicas.kv.loader import Loader
from replicas.kv.paged_cache import PagedCache
from replicas.kv.saver import Saver
from replicas.kv.settings import KvSettings
from replicas.kv.step_plan import Loaded, StepPlan
from state_store.kv.block_store import BlockStore


@dataclass(slots=True)
class StepReport:
    """What ended since the last step."""

    received: set[str] = field(default_factory=set)
    """Requests whose load is over, however it went."""
    sent: set[str] = field(default_factory=set)
    """Requests that are over and whose blocks are free."""
    failed_blocks: set[int] = field(default_factory=set)
    """Blocks of the cache that a load left without anything good."""
    loads: list[Loaded] = field(default_factory=list)


class WorkerSide:
    """One worker's transfers between its part of the cache and Redis."""

    def __init__(
        self, cache: PagedCache, store: BlockStore, fingerprint: bytes, settings: KvSettings
    ) -> None:
        self._cache, self._store = cache, store
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._loader = Loader(
            cache, store, fingerprint, settings.connections, lambda why, n: self._count(f"missed_{why}", n)
        )
        self._saver = Saver(
            cache,
            store,
            fingerprint,
            self._count,
            codec=settings.compression,
            acknowledges=settings.strategy == "sync",
        )

    def before_step(self, plan: StepPlan) -> None:
        """To be called before the model overwrites anything."""
        if plan.preempted:
            self._saver.forget(plan.preempted)

    @property
    def loads_beside_the_model(self) -> bool:
        """Whether loads may begin before the step is computed: where a device computes, it is still to clear their blocks."""
        return self._cache.is_on_cpu

    def begin_loads(self, plan: StepPlan) -> None:
        """Begins those of the plan that were not begun yet."""
        transfers, plan.loads = plan.loads, []
        for transfer in transfers:
            self._loader.start(transfer)

    def end_of_step(self, plan: StepPlan) -> StepReport:
        """What ended since the last step; one in which nothing is computed has time to wait for a load."""
        if plan.is_idle:
            self._loader.wait_a_little()
        return self.report()

    def after_step(self, plan: StepPlan) -> None:
        """To be called when the model has been run: what the step filled may be saved."""
        if not plan.saves and not plan.ended:
            return
        ready = self._cache.ready()
        for transfer in plan.saves:
            self._saver.save(transfer, ready)
        for ended in plan.ended:
            self._saver.end(ended)

    def report(self) -> StepReport:
        received, failed_blocks, loads = self._loader.take_finished()
        for loaded in loads:
            self._count("loaded_bytes", loaded.size_bytes)
            self._count("load_seconds", loaded.seconds)
            self._count("loads", 1)
        return StepReport(received, self._saver.take_copied(), failed_blocks, loads)

    def take_counts(self) -> dict[str, float]:
        """What was counted since the last call, by name."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be saved."""
        return self._saver.is_idle

    def close(self) -> None:
        self._saver.close()
        self._loader.close()
        self._store.close()

    def _count(self, name: str, by: float) -> None:
        with self._lock:
            self._counts[name] += by  # type: ignore[assignment]  # Counter is typed for whole numbers
