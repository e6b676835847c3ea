"""What is looked up, loaded and saved of a request, step by step, without a model."""

import time
from typing import Any

import pytest

from replicas.kv.restore_policy import Link, Prefill
from replicas.kv.scheduler_side import Scheduled, SchedulerSide
from replicas.kv.settings import KvSettings, Strategy
from replicas.kv.step_plan import Ended, Loaded, StepPlan
from tests.replicas.kv.rig import FINGERPRINT, Clock, Request, Rig, hashes, key, until

TOKENS = 16
HASHES = list(hashes(10))
NOBODY: frozenset[str] = frozenset()


def side(
    rig: Rig, strategy: Strategy = "replicate", ranks: int = 1, clock: Clock | None = None
) -> SchedulerSide:
    prints = [FINGERPRINT, b"g" * 16][:ranks]
    return rig.scheduler(KvSettings(strategy), prints, TOKENS, clock or Clock())


def request(tokens: int = 165, **more: object) -> Request:
    return Request("r", HASHES[: tokens // TOKENS], tokens, num_prompt_tokens=tokens, **more)  # type: ignore[arg-type]


def stored(rig: Rig, *numbers: int) -> None:
    rig.redis().mset({key(HASHES[n]): b"x" for n in numbers})


def matched(subject: SchedulerSide, asking: Request, computed: int = 0) -> int:
    until(lambda: subject.matched_tokens(asking, computed) is not None)
    tokens = subject.matched_tokens(asking, computed)
    assert tokens is not None
    return tokens


def step(subject: SchedulerSide, computed: int, new: int, blocks: int) -> StepPlan:
    return subject.take_plan([Scheduled("r", computed, new, range(100, 100 + blocks))], NOBODY)


@pytest.mark.parametrize(
    ("there", "tokens", "computed", "expected"),
    [
        (range(10), 165, 0, 160),
        (range(10), 160, 0, 144),
        (range(4), 165, 0, 64),
        ((0, 1, 3, 4), 165, 0, 32),
        ((1, 2, 3), 165, 0, 0),
        (range(10), 165, 96, 64),
        (range(4), 165, 96, 0),
        (range(10), 12, 0, 0),
    ],
)
def test_the_run_from_the_beginning_counts_beyond_what_is_there_already(
    rig: Rig, there: range, tokens: int, computed: int, expected: int
) -> None:
    stored(rig, *there)
    subject, asking = side(rig), request(tokens)
    subject.arrived(asking)
    assert matched(subject, asking, computed) == expected


def test_a_block_must_be_there_of_every_rank(rig: Rig) -> None:
    stored(rig, *range(10))
    subject, asking = side(rig, ranks=2), request()
    subject.arrived(asking)
    assert matched(subject, asking) == 0


def test_what_nobody_foresaw_means_nothing_to_load_and_does_not_end_the_engine(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    no_hash: Any = None
    subject, asking = side(rig), request()
    asking.block_hashes = [no_hash] * 10
    subject.arrived(asking)
    assert matched(subject, asking) == 0
    assert "KV blocks are not looked up" in caplog.text


def test_no_answer_in_time_means_nothing_to_load(rig: Rig) -> None:
    clock = Clock()
    subject, asking = side(rig, clock=clock), request()
    rig.freeze()
    subject.arrived(asking)
    assert subject.matched_tokens(asking, 0) is None
    clock.at += 0.2
    assert subject.matched_tokens(asking, 0) == 0


def test_a_look_up_is_waited_for_the_longer_the_more_is_at_stake(rig: Rig) -> None:
    stored(rig, *range(10))
    clock = Clock()
    subject, asking = side(rig, clock=clock), request()
    # 160 tokens that take 16 s.
    subject.prefill = Prefill({7: 0.1})
    rig.freeze()
    subject.arrived(asking)
    clock.at += 0.4
    assert subject.matched_tokens(asking, 0) is None
    rig.thaw()
    assert matched(subject, asking) == 160


def test_who_does_not_answer_is_asked_again_in_time(rig: Rig) -> None:
    stored(rig, *range(10))
    subject, asking = side(rig), request()
    subject.prefill = Prefill({7: 0.1})
    rig.redis().client_kill_filter(_type="normal", skipme=True)
    subject.arrived(asking)
    assert matched(subject, asking) == 160


def test_a_redis_that_is_known_to_be_away_is_not_waited_for(rig: Rig) -> None:
    subject, asking = side(rig), request()
    subject.prefill = Prefill({7: 0.1})
    rig.freeze()
    for patience_s in (2.0, 0.3):
        begun = time.monotonic()
        subject.arrived(asking)
        found = subject._known["r"].found
        assert found is not None
        assert found.result(timeout=2.0) == 0
        assert time.monotonic() - begun < patience_s


def test_what_is_faster_to_compute_is_not_loaded(rig: Rig) -> None:
    stored(rig, *range(10))
    subject, asking = side(rig), request()
    subject.link, subject.prefill = Link(0.0, 1e-3, 999.0), Prefill({7: 1e-6})
    subject.arrived(asking)
    assert matched(subject, asking) == 0
    assert subject.take_counts() == {"recompute": 1}


@pytest.mark.parametrize(
    "said", [{"lora_request": "an adapter"}, {"kv_transfer_params": {"graceway_keep": False}}]
)
def test_requests_with_an_adapter_or_that_say_so_are_left_alone(rig: Rig, said: dict[str, object]) -> None:
    stored(rig, *range(10))
    subject, asking = side(rig), request(**said)
    subject.arrived(asking)
    assert subject.matched_tokens(asking, 0) == 0
    assert step(subject, 0, 165, 11).saves == []
    assert subject.finished(asking, range(11)) is False


def test_the_blocks_to_load_are_those_behind_what_is_computed(rig: Rig) -> None:
    stored(rig, *range(6))
    subject, asking = side(rig), request()
    subject.arrived(asking)
    assert matched(subject, asking, 32) == 64
    subject.allocated(asking, range(100, 106), 64)
    (load,) = subject.take_plan([], NOBODY).loads
    assert (load.hashes, load.block_ids, load.depth) == (tuple(HASHES[2:6]), (102, 103, 104, 105), 2)


def test_a_load_is_tried_once(rig: Rig) -> None:
    stored(rig, *range(10))
    subject, asking = side(rig), request()
    subject.arrived(asking)
    matched(subject, asking)
    subject.allocated(asking, range(100, 110), 160)
    assert subject.matched_tokens(asking, 0) == 0


def test_each_block_is_saved_in_the_step_that_fills_it(rig: Rig) -> None:
    subject, asking = side(rig), request()
    subject.arrived(asking)
    first = step(subject, 0, 100, 7).saves[0]
    assert (first.hashes, first.block_ids, first.depth) == (tuple(HASHES[:6]), tuple(range(100, 106)), 0)
    second = step(subject, 100, 65, 11).saves[0]
    assert (second.hashes, second.depth) == (tuple(HASHES[6:10]), 6)
    assert step(subject, 165, 1, 11).saves == []
    asking.num_tokens, asking.num_computed_tokens = 170, 169
    assert subject.finished(asking, range(100, 111)) is True
    assert step(subject, 0, 0, 0).ended == [Ended("r")]


def test_a_block_whose_last_token_is_not_known_yet_waits(rig: Rig) -> None:
    subject, asking = side(rig), request(95)
    subject.arrived(asking)
    assert len(step(subject, 0, 95, 6).saves[0].hashes) == 5
    # Planned ahead: the token that fills the sixth block is being sampled.
    assert step(subject, 95, 1, 6).saves == []
    asking.block_hashes.append(HASHES[5])
    assert step(subject, 96, 1, 7).saves[0].hashes == (HASHES[5],)


def test_a_checkpoint_is_saved_at_the_end(rig: Rig) -> None:
    subject, asking = side(rig, "checkpoint"), request()
    subject.arrived(asking)
    assert step(subject, 0, 165, 11).saves == []
    asking.num_tokens, asking.num_computed_tokens = 166, 165
    assert subject.finished(asking, range(100, 111)) is True
    plan = subject.take_plan([], NOBODY)
    assert plan.saves[0].hashes == tuple(HASHES)
    assert plan.ended == [Ended("r")]


def test_the_last_token_is_in_no_block(rig: Rig) -> None:
    subject, asking = side(rig, "checkpoint"), request(159)
    subject.arrived(asking)
    asking.block_hashes.append(HASHES[9])
    asking.num_tokens, asking.num_computed_tokens = 160, 160
    subject.finished(asking, range(100, 110))
    assert subject.take_plan([], NOBODY).saves[0].hashes == tuple(HASHES[:9])


def test_a_request_that_leaves_while_it_loads_saves_nothing(rig: Rig) -> None:
    stored(rig, *range(10))
    subject, asking = side(rig), request()
    subject.arrived(asking)
    matched(subject, asking)
    subject.allocated(asking, range(100, 110), 160)
    asking.num_computed_tokens = 160
    assert subject.finished(asking, range(100, 110)) is False
    assert subject.take_plan([], NOBODY).saves == []


def test_what_another_connector_loads_is_saved_once_the_request_is_run(rig: Rig) -> None:
    """Until then its blocks hold nothing, though they count as computed."""
    left, ran = side(rig), side(rig)
    for subject in (left, ran):
        asking = request()
        subject.arrived(asking)
        subject.allocated(asking, range(100, 110), 0)
        asking.num_computed_tokens = 160
    assert left.finished(asking, range(100, 110)) is False
    assert left.take_plan([], NOBODY).saves == []
    assert step(ran, 160, 5, 11).saves[0].hashes == tuple(HASHES)


def test_what_was_preempted_is_saved_again(rig: Rig) -> None:
    subject, asking = side(rig), request()
    subject.arrived(asking)
    step(subject, 0, 100, 7)
    plan = subject.take_plan([], frozenset({"r", "unknown"}))
    assert plan.preempted == {"r", "unknown"}
    assert len(step(subject, 0, 100, 7).saves[0].hashes) == 6


@pytest.mark.parametrize(("strategy", "turn"), [("sync", "turn-1"), ("replicate", "")])
def test_only_sync_acknowledges(rig: Rig, strategy: Strategy, turn: str) -> None:
    subject = side(rig, strategy)
    asking = request(kv_transfer_params={"graceway_turn": "turn-1"})
    subject.arrived(asking)
    step(subject, 0, 165, 11)
    subject.finished(asking, range(100, 111))
    assert subject.take_plan([], NOBODY).ended == [Ended("r", turn)]


def test_prefill_and_loads_are_learnt_from_steps(rig: Rig) -> None:
    clock = Clock()
    subject, asking = side(rig, clock=clock), request()
    subject.arrived(asking)
    step(subject, 0, 160, 11)
    clock.at += 0.8
    subject.step_done([Loaded(1_000_000, 0.5, 0)])
    assert subject.figures()["prefill_tokens_per_s"] == pytest.approx(200.0)
    assert subject.link.predict(1_000_000, clock.at) == pytest.approx(0.5, rel=0.1)
    step(subject, 165, 1, 11)
    clock.at += 0.3
    subject.step_done([])
    assert subject.figures()["prefill_tokens_per_s"] == pytest.approx(200.0)


def test_only_a_request_that_just_came_waits_a_moment_for_its_look_up(rig: Rig) -> None:
    subject, asking = side(rig), request()
    rig.freeze()
    subject.arrived(asking)
    begun = time.monotonic()
    assert [subject.matched_tokens(asking, 0) for _ in range(100)] == [None] * 100
    assert time.monotonic() - begun < 0.1


def test_a_step_says_whether_anything_is_computed_in_it(rig: Rig) -> None:
    subject = side(rig)
    assert subject.take_plan([], NOBODY).is_idle
    assert not step(subject, 0, 16, 1).is_idle
