"""A cache of plain tensors, a Redis, and both sides of the connector on them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from replicas.kv.paged_cache import PagedCache
from replicas.kv.scheduler_side import SchedulerSide
from replicas.kv.settings import KvSettings
from replicas.kv.worker_side import StepReport, WorkerSide
from state_store.kv.block_format import BlockId
from state_store.kv.block_store import BlockStore
from tests.redis_server import RedisServer

BLOCKS, HEADS, TOKENS, CHANNELS, LAYERS = 64, 2, 16, 8, 3
FINGERPRINT = b"f" * 16
WITHIN_S = 20.0


def tensors(seed: int | None = None, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """The caches of all layers: noise by `seed`, zeros without."""
    shape = (BLOCKS, HEADS, TOKENS, CHANNELS)
    if seed is None:
        return [torch.zeros(shape, dtype=dtype) for _ in range(LAYERS)]
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(LAYERS)]


def hashes(count: int, seed: int = 0) -> tuple[bytes, ...]:
    rng = Random(seed)
    return tuple(rng.randbytes(32) for _ in range(count))


def key(block_hash: bytes) -> bytes:
    return BlockId(FINGERPRINT, block_hash).key


@dataclass
class Request:
    """What the scheduler's side sees of vLLM's request."""

    request_id: str
    block_hashes: list[bytes]
    num_tokens: int
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    lora_request: Any = None
    kv_transfer_params: dict[str, Any] | None = field(default=None)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


class Rig:
    """A Redis, and what uses it and ends with the test."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.redis, self.freeze, self.thaw = server.redis, server.freeze, server.thaw

    def store(self, settings: KvSettings) -> BlockStore:
        store = BlockStore(self._server.url, settings.budget)
        self._server.at_end(store.close)
        return store

    def worker(self, cache: list[torch.Tensor], settings: KvSettings | None = None) -> WorkerSide:
        settings = settings or KvSettings()
        side = WorkerSide(PagedCache(cache, BLOCKS), self.store(settings), FINGERPRINT, settings)
        self._server.at_end(side.close)
        return side

    def scheduler(
        self, settings: KvSettings, prints: list[bytes], tokens: int, clock: Clock
    ) -> SchedulerSide:
        side = SchedulerSide(self.store(settings), prints, tokens, 1000, settings, clock)
        self._server.at_end(side.close)
        return side


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.002)


def settled(worker: WorkerSide) -> StepReport:
    """All that ends until nothing is under way."""
    total = StepReport()

    def is_settled() -> bool:
        report = worker.report()
        total.received |= report.received
        total.sent |= report.sent
        total.failed_blocks |= report.failed_blocks
        total.loads += report.loads
        return worker.is_idle

    until(is_settled)
    is_settled()
    return total


def received(worker: WorkerSide, request: str) -> StepReport:
    """What ends until `request`'s load has."""
    reports: list[StepReport] = []

    def has_ended() -> bool:
        reports.append(worker.report())
        return request in reports[-1].received

    until(has_ended)
    return reports[-1]
