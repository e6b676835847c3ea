"""Blocks go to Redis and come back bit for bit; whatever happens to them in between is a miss of that block alone."""

import threading
import time
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch

from replicas.kv.settings import KvSettings
from replicas.kv.step_plan import Ended, StepPlan, Transfer
from state_store.kv.block_format import HEAD_BYTES, Codec
from state_store.kv.turn import turn_key
from tests.replicas.kv.rig import (
    BLOCKS,
    CHANNELS,
    HEADS,
    LAYERS,
    TOKENS,
    Rig,
    hashes,
    key,
    received,
    settled,
    tensors,
    until,
)

COUNT = 24
HASHES = hashes(COUNT)
SOURCE = tuple(Random(1).sample(range(BLOCKS), COUNT))
TARGET = tuple(Random(2).sample(range(BLOCKS), COUNT))


def saving(request: str = "r", depth: int = 0) -> Transfer:
    return Transfer(request, HASHES, SOURCE, depth)


def loading(request: str = "q", patience_s: float = 5.0) -> Transfer:
    return Transfer(request, HASHES, TARGET, 0, patience_s)


def good_blocks(source: list[torch.Tensor], target: list[torch.Tensor]) -> set[int]:
    """Which of the blocks arrived as they were, in all layers."""
    return {
        at
        for at in range(COUNT)
        if all(torch.equal(a[SOURCE[at]], b[TARGET[at]]) for a, b in zip(source, target, strict=True))
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_another_replica_gets_the_same_bits(rig: Rig, dtype: torch.dtype, compression: str) -> None:
    settings = KvSettings(compression=compression)  # type: ignore[arg-type]
    source, target = tensors(1, dtype), tensors(None, dtype)
    one, other = rig.worker(source, settings), rig.worker(target, settings)
    one.after_step(StepPlan(saves=[saving()]))
    settled(one)
    other.begin_loads(StepPlan(loads=[loading()]))
    report = received(other, "q")
    assert report.failed_blocks == set()
    assert good_blocks(source, target) == set(range(COUNT))
    untouched = set(range(BLOCKS)) - set(TARGET)
    assert all(not layer[list(untouched)].any() for layer in target)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("codec", "loss"), [("int8", 0.005), ("fp8", 0.04)])
def test_with_loss_another_replica_gets_almost_the_same(
    rig: Rig, dtype: torch.dtype, codec: Codec, loss: float
) -> None:
    """In a quarter or half of the room, which is what the budget counts."""
    settings = KvSettings(compression=codec)
    source, target = tensors(1, dtype), tensors(None, dtype)
    one, other = rig.worker(source, settings), rig.worker(target, settings)
    one.after_step(StepPlan(saves=[saving()]))
    settled(one)
    other.begin_loads(StepPlan(loads=[loading()]))
    assert received(other, "q").failed_blocks == set()
    for before, after in zip(source, target, strict=True):
        given, got = before[list(SOURCE)].float(), after[list(TARGET)].float()
        assert (given - got).abs().max() <= loss * given.abs().max()
        assert got.abs().max() > 0
    elements = COUNT * LAYERS * HEADS * TOKENS * CHANNELS
    size_bytes = elements + 2 * elements // 32 + COUNT * HEAD_BYTES
    assert one.take_counts()["saved_bytes"] == size_bytes
    assert int(rig.redis().get(settings.budget.counted) or 0) == size_bytes


def test_it_is_written_once_and_by_whoever_comes_first(rig: Rig) -> None:
    first, second = rig.worker(tensors(1)), rig.worker(tensors(1))
    for worker in (first, second, first):
        worker.after_step(StepPlan(saves=[saving()]))
        settled(worker)
    counts = first.take_counts()
    assert counts["saved_blocks"] == COUNT
    assert 0 < counts["save_cpu_seconds"] < 1
    assert "saved_blocks" not in second.take_counts()


def test_a_cache_that_is_no_array_of_blocks_of_its_own_is_copied_all_the_same(rig: Rig) -> None:
    wide = [torch.zeros(BLOCKS, 4, 16, 8)[:, 1:3] for _ in range(3)]
    source = tensors(1)
    one, other = rig.worker(source), rig.worker(wide)
    one.after_step(StepPlan(saves=[saving()]))
    settled(one)
    other.begin_loads(StepPlan(loads=[loading()]))
    received(other, "q")
    assert good_blocks(source, wide) == set(range(COUNT))


@pytest.mark.parametrize("seed", range(8))
def test_damage_at_random_costs_exactly_the_damaged_blocks(rig: Rig, seed: int) -> None:
    rng, redis, source, target = Random(seed), rig.redis(), tensors(1), tensors()
    one, other = rig.worker(source), rig.worker(target)
    one.after_step(StepPlan(saves=[saving()]))
    settled(one)
    damaged = set(rng.sample(range(COUNT), rng.randint(1, COUNT)))
    for at in damaged:
        spoil(redis, key(HASHES[at]), key(HASHES[at - 1]), rng)
    other.begin_loads(StepPlan(loads=[loading()]))
    report = received(other, "q")
    assert report.failed_blocks == {TARGET[at] for at in damaged}
    assert good_blocks(source, target) == set(range(COUNT)) - damaged
    # What is bad makes room: the next one that computes it writes it anew.
    one.after_step(StepPlan(saves=[saving()]))
    settled(one)
    other.begin_loads(StepPlan(loads=[loading("again")]))
    assert received(other, "again").failed_blocks == set()


def spoil(redis, mine: bytes, foreign: bytes, rng: Random) -> None:  # type: ignore[no-untyped-def]
    value = bytearray(redis.get(mine) or b"")
    how = rng.choice(["delete", "cut", "flip", "lengthen", "swap", "empty"])
    if how == "delete":
        redis.delete(mine)
    elif how == "swap" and redis.get(foreign) and redis.get(foreign) != bytes(value):
        redis.set(mine, redis.get(foreign))
    elif how == "cut":
        redis.set(mine, bytes(value[: rng.randrange(len(value))]))
    elif how == "lengthen":
        redis.set(mine, bytes(value) + rng.randbytes(rng.randint(1, 50)))
    elif how == "empty":
        redis.set(mine, b"")
    else:
        value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        redis.set(mine, bytes(value))


def test_a_redis_that_freezes_costs_the_patience_of_the_load(rig: Rig) -> None:
    one, other = rig.worker(tensors(1)), rig.worker(tensors())
    one.after_step(StepPlan(saves=[saving()]))
    settled(one)
    assert rig.redis().ping()
    rig.freeze()
    other.begin_loads(StepPlan(loads=[loading(patience_s=0.1)]))
    report = received(other, "q")
    assert report.failed_blocks == set(TARGET)
    assert report.loads[0].seconds < 1.0


def test_a_redis_that_stands_still_for_a_moment_costs_that_moment(rig: Rig) -> None:
    source, target = tensors(1), tensors()
    one, other = rig.worker(source), rig.worker(target)
    one.after_step(StepPlan(saves=[saving()]))
    settled(one)
    rig.freeze()
    # Longer than the load waits for one block.
    threading.Timer(0.7, rig.thaw).start()
    other.begin_loads(StepPlan(loads=[loading(patience_s=4.0)]))
    report = received(other, "q")
    assert report.failed_blocks == set()
    assert good_blocks(source, target) == set(range(COUNT))


def test_blocks_of_a_request_that_is_over_are_kept_until_they_were_copied(rig: Rig) -> None:
    source, target = tensors(1), tensors()
    as_it_was = [layer.clone() for layer in source]
    one, other = rig.worker(source), rig.worker(target)
    one.after_step(StepPlan(saves=[saving()], ended=[Ended("r")]))
    assert settled(one).sent == {"r"}
    for layer in source:
        layer.fill_(7)
    other.begin_loads(StepPlan(loads=[loading()]))
    received(other, "q")
    assert good_blocks(as_it_was, target) == set(range(COUNT))


def test_a_request_is_named_once(rig: Rig) -> None:
    worker = rig.worker(tensors(1))
    worker.after_step(StepPlan(saves=[saving()], ended=[Ended("r")]))
    assert settled(worker).sent == {"r"}
    worker.after_step(StepPlan(saves=[saving("s")]))
    assert settled(worker).sent == set()


def test_what_was_preempted_is_not_read_again(rig: Rig) -> None:
    source, target = tensors(1), tensors()
    one, other = rig.worker(source), rig.worker(target)
    one.after_step(StepPlan(saves=[saving("a"), saving("b"), saving("r")]))
    one.before_step(StepPlan(preempted=frozenset({"a", "b", "r"})))
    as_it_was = [layer.clone() for layer in source]
    for layer in source:
        layer.fill_(7)
    settled(one)
    other.begin_loads(StepPlan(loads=[loading()]))
    failed = received(other, "q").failed_blocks
    arrived = {at for at in range(COUNT) if TARGET[at] not in failed}
    assert good_blocks(as_it_was, target) == arrived


def test_a_turn_is_acknowledged_when_all_of_it_is_stored(rig: Rig) -> None:
    worker, redis = rig.worker(tensors(1), KvSettings("sync")), rig.redis()
    worker.after_step(StepPlan(saves=[saving()], ended=[Ended("r", "turn-1")]))
    settled(worker)
    until(lambda: redis.get(turn_key("turn-1")) == b"stored")
    assert redis.exists(*map(key, HASHES)) == COUNT


def test_a_turn_that_redis_did_not_take_is_not_acknowledged(rig: Rig) -> None:
    worker, redis = rig.worker(tensors(1), KvSettings("sync")), rig.redis()
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)
    worker.after_step(StepPlan(saves=[saving()], ended=[Ended("r", "turn-1")]))
    assert settled(worker).sent == {"r"}
    assert redis.get(turn_key("turn-1")) is None
    assert worker.take_counts()["save_failed_blocks"] == COUNT


def test_a_turn_that_does_not_fit_the_budget_is_not_acknowledged(rig: Rig) -> None:
    one_block = HEAD_BYTES + LAYERS * HEADS * TOKENS * CHANNELS * 4
    settings = KvSettings("sync", budget_bytes=(COUNT - 1) * one_block)
    worker, redis = rig.worker(tensors(1), settings), rig.redis()
    parts = [Transfer("r", HASHES[at : at + 1], SOURCE[at : at + 1], at) for at in range(COUNT)]
    worker.after_step(StepPlan(saves=parts, ended=[Ended("r", "turn-1")]))
    worker.after_step(
        StepPlan(saves=[replace(parts[-1], request="s", depth=0)], ended=[Ended("s", "turn-2")])
    )
    until(lambda: redis.get(turn_key("turn-2")) == b"stored")
    assert redis.get(turn_key("turn-1")) is None
    assert redis.exists(*map(key, HASHES)) == COUNT - 1


def test_what_nobody_foresaw_keeps_no_block_and_stops_no_later_save(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    worker, redis = rig.worker(tensors(1)), rig.redis()
    no_hash: Any = None
    worker.after_step(
        StepPlan(saves=[Transfer("odd", (no_hash,), (3,), 0), saving()], ended=[Ended("odd"), Ended("r")])
    )
    assert settled(worker).sent == {"odd", "r"}
    assert redis.exists(*map(key, HASHES)) == COUNT
    assert worker.take_counts()["save_failed_blocks"] == 1
    assert "KV blocks are not saved" in caplog.text


@pytest.mark.parametrize("how", ["frozen", "full"])
def test_a_redis_that_stays_away_keeps_no_blocks_from_other_requests(rig: Rig, how: str) -> None:
    worker, redis = rig.worker(tensors(1)), rig.redis()
    redis.config_set("maxmemory-policy", "noeviction")
    redis.config_set("maxmemory", 1)
    if how == "frozen":
        rig.freeze()
    begun, names = time.monotonic(), {str(number) for number in range(40)}
    parts = [Transfer(name, HASHES[:1], SOURCE[:1], 0) for name in names]
    worker.after_step(StepPlan(saves=parts, ended=[Ended(name) for name in names]))
    assert settled(worker).sent == names
    assert time.monotonic() - begun < 5.0


def test_a_backlog_is_bounded(rig: Rig) -> None:
    worker = rig.worker(tensors(1))
    rig.freeze()
    worker.after_step(StepPlan(saves=[saving(str(n)) for n in range(60)]))
    assert worker.take_counts()["save_dropped_blocks"] > 0


def test_a_step_that_computes_nothing_waits_for_a_load_and_no_other(rig: Rig) -> None:
    worker = rig.worker(tensors())
    rig.freeze()
    worker.begin_loads(StepPlan(loads=[loading(patience_s=0.05)]))
    begun, steps = time.monotonic(), 0
    while not worker.end_of_step(StepPlan(is_idle=True)).received:
        steps += 1
    assert 0 < steps <= (time.monotonic() - begun) / 0.004
    begun = time.monotonic()
    worker.begin_loads(StepPlan(loads=[loading(patience_s=5.0)]))
    for _ in range(50):
        worker.end_of_step(StepPlan())
    assert time.monotonic() - begun < 0.2
    rig.thaw()


def test_a_plan_s_loads_begin_once(rig: Rig) -> None:
    worker, plan = rig.worker(tensors()), StepPlan(loads=[loading()])
    worker.begin_loads(plan)
    worker.begin_loads(plan)
    assert len(received(worker, "q").loads) == 1
    assert settled(worker).loads == []
