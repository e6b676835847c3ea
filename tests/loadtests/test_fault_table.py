"""The fault table's own judgement: a front that loses requests is told so, one that loses none is not."""

import asyncio
from dataclasses import replace

import pytest

from loadtests.client import Question, Record
from loadtests.fault_rows import BREAKER_METRIC, IN_FLIGHT_METRIC, ROWS, Row, front_metric
from loadtests.fault_table import run_row
from loadtests.fleet import Plan, running
from loadtests.kills import run_kills
from loadtests.tokens import decode
from loadtests.trial import Load, Trial, nothing, run_trial

BY_NAME = {row.name: row for row in ROWS}
REPLICAS = ("http://127.0.0.1:1", "http://127.0.0.1:2")


def answered(due_s: float, replica: int = 1, *, wrong: bool = False, ttft_s: float = 0.1) -> Record:
    question = Question(({"role": "user", "content": f"{due_s}"},), 10)
    ids = question.expected_ids()
    text = decode(ids[:5]) + " zzzz" * 5 if wrong else decode(ids)
    times = [due_s + ttft_s + 0.02 * number for number in range(10)]
    headers = {"x-served-replica": REPLICAS[replica].removeprefix("http://")}
    return Record(due_s, question, due_s, times[-1], times, text, 200, headers, {"m"}, "length", True)


def trial(*records: Record, heal_s: float | None = None) -> Trial:
    return Trial(records, 0.0, 5.0, heal_s, REPLICAS)


def test_a_late_first_token_is_not_in_time() -> None:
    slow = trial(answered(1.0), answered(2.0, ttft_s=1.5))
    assert slow.share_whole == 1.0
    assert slow.share_in_time == 0.5
    assert BY_NAME["none"].misses(slow)


def test_a_silent_end_is_a_miss_and_a_declared_one_is_not_silent() -> None:
    silent, declared = answered(1.0), answered(1.0)
    silent.is_done = declared.is_done = False
    declared.error_event = "the replica is gone"
    assert len(trial(silent, declared).silent_ends()) == 1


@pytest.mark.parametrize(
    ("records", "is_kept"),
    [
        ([answered(6.0, 0), answered(9.0, 1), answered(15.0, 0)], True),
        ([answered(9.0, 0), answered(15.0, 0)], False),
        ([answered(9.0, 1), answered(30.0, 0)], False),
        ([answered(9.0, 1), answered(15.0, 1)], False),
    ],
)
def test_a_slow_replica_is_out_soon_and_back_soon(records: list[Record], is_kept: bool) -> None:
    misses = BY_NAME["slow"].misses(trial(*records, heal_s=13.0))
    assert (not misses) is is_kept


def test_a_wrong_answer_may_come_until_two_probe_intervals_are_over() -> None:
    row = BY_NAME["wrong"]
    assert row.misses(trial(answered(14.0, wrong=True), answered(16.0))) == []
    assert row.misses(trial(answered(16.0, wrong=True), answered(16.0)))


async def test_without_a_front_a_killed_replica_costs_requests() -> None:
    row = replace(BY_NAME["sigkill"], duration_s=3.0)
    async with running(Plan("direct")) as fleet:
        result = await run_trial(fleet, row.load(10.0, 1), row.fault, 1.0, nothing, None)
        assert result.silent_ends()
        assert row.misses(result)
        assert not fleet.replicas[0].is_running


async def test_a_healthy_fleet_keeps_every_promise() -> None:
    async with running(Plan("direct")) as fleet:
        load = Load(rate_per_s=10.0, duration_s=2.0, tokens=20, leaving_share=0.3)
        result = await run_trial(fleet, load, nothing, 0.5, nothing, None)
        assert Row("none", nothing).misses(result) == []
        assert any(record.failure == "left" for record in result.records)
        assert len(result.staying()) < len(result.records)
        assert await BY_NAME["hang-up"].after(fleet) == []


@pytest.mark.parametrize(
    "name", ["sigkill", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cut", "malformed"))]
)
async def test_graceway_keeps_its_row(name: str) -> None:
    """A short version of the table; the whole of it is `python -m loadtests.fault_table`."""
    row = replace(BY_NAME[name], duration_s=4.0)
    result = await run_row(row, "graceway", rate_per_s=6.0, seed=3, fault_s=1.5)
    assert result.misses == []
    assert result.asked > 10


async def test_the_metrics_that_rows_look_at_are_there() -> None:
    async with running(Plan("graceway")) as fleet:
        for name in (BREAKER_METRIC, IN_FLIGHT_METRIC):
            assert await front_metric(fleet, name) == [0.0, 0.0, 0.0]


async def test_kills_are_counted_and_lose_nothing() -> None:
    said: list[str] = []
    async with asyncio.timeout(60):
        report = await run_kills(12, "graceway", 1, said.append)
    assert report.kills >= 12
    assert report.process_kills
    assert report.cuts
    assert report.is_kept
    assert report.whole > 12
    assert "tokens lost 0" in said[-1]
