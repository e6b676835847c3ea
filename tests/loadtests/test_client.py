"""The verifying client: what it calls whole, lost, repeated and wrong, and what it records."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from loadtests.client import Difference, EventReader, Question, Record, ask, difference, open_loop, poisson
from loadtests.tokens import decode
from tests.rig import EngineProcess, free_port

QUESTION = Question(({"role": "user", "content": "how are you"},), 30)
IDS = QUESTION.expected_ids()


@pytest.fixture
async def engine() -> AsyncIterator[EngineProcess]:
    async with EngineProcess(slots=8, token_ms=5) as process:
        yield process


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("received", "found"),
    [
        ((), Difference()),
        ((1, 2, 3), Difference()),
        ((1, 2, 3, 4, 5, 6), Difference()),
        ((1, 2, 4, 5, 6), Difference(lost=1)),
        ((1, 4, 5, 6), Difference(lost=2)),
        ((1, 2, 2, 3, 4), Difference(repeated=1)),
        ((1, 2, 3, 1, 2, 3, 4), Difference(repeated=3)),
        ((1, 3, 4, 4, 5), Difference(lost=1, repeated=1)),
        ((1, 2, 9, 9), Difference(divergent=2)),
        ((9, 9), Difference(divergent=2)),
        ((1, 2, 3, 4, 5, 6, 7), Difference(divergent=1)),
    ],
)
def test_difference(received: tuple[int, ...], found: Difference) -> None:
    assert difference((1, 2, 3, 4, 5, 6), received) == found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_events_are_read_however_they_are_cut(size: int) -> None:
    text = "".join(
        f'data: {{"model":"m","choices":[{{"delta":{{"content":"{word}"}},"finish_reason":null}}]}}\n\n'
        for word in ("a", "é", "日", "😀")
    )
    body = (text + 'data: {broken\n\ndata: {"error":{"message":"no"}}\n\ndata: [DONE]\n\n').encode()
    record = Record(0.0, QUESTION)
    reader = EventReader(record, lambda: None)
    for start in range(0, len(body), size):
        reader.receive(body[start : start + size], float(start))
    assert record.text == "aé日😀"
    assert len(record.token_times) == 4
    assert record.malformed_events == 1
    assert record.error_event is not None
    assert record.is_done
    assert not record.is_ended


@pytest.mark.parametrize(
    ("text", "finish_reason", "is_done", "is_whole"),
    [
        (decode(IDS), "length", True, True),
        (decode(IDS), "length", False, False),
        (decode(IDS), None, True, False),
        (decode(IDS[:-1]), "length", True, False),
        (decode(IDS[:9] + IDS[10:]), "length", True, False),
        ("", "stop", True, False),
    ],
)
def test_whole_is_every_token_and_a_proper_end(
    text: str, finish_reason: str | None, is_done: bool, is_whole: bool
) -> None:
    record = Record(0.0, QUESTION, text=text, status=200, finish_reason=finish_reason, is_done=is_done)
    assert record.is_whole is is_whole


def test_times_count_from_when_a_request_was_due() -> None:
    record = Record(10.0, QUESTION, started_at=10.2, token_times=[10.5, 10.6, 11.6, 11.7])
    assert record.lag_s == pytest.approx(0.2)
    assert record.ttft_s == pytest.approx(0.5)
    assert record.max_gap_s == pytest.approx(1.0)


async def test_an_undisturbed_answer_is_whole(engine: EngineProcess) -> None:
    record = await ask(engine.url, "m", QUESTION, now())
    assert record.is_whole
    assert record.is_in_time(1.0)
    assert record.difference() == Difference()
    assert 0.004 <= record.max_gap_s < 0.5
    assert record.models == {"m"}


@pytest.mark.parametrize(
    ("fault", "details", "failure"),
    [
        ("cut", {"after_tokens": 5}, "cut"),
        ("hang", {"after_tokens": 5}, "timeout"),
        ("wrong", {}, None),
        ("no_tokens", {}, None),
        ("error_event", {"after_tokens": 5}, None),
        ("error", {"status": 500}, None),
    ],
)
async def test_no_fault_passes_for_whole(
    engine: EngineProcess, fault: str, details: dict[str, object], failure: str | None
) -> None:
    await engine.fault(fault, **details)
    record = await ask(engine.url, "m", QUESTION, now(), timeout_s=0.5)
    assert not record.is_whole
    assert not record.is_declared_failure
    assert record.failure == failure


async def test_nobody_there_is_refused() -> None:
    record = await ask(f"http://127.0.0.1:{free_port()}", "m", QUESTION, now())
    assert record.failure == "refused"


async def test_a_client_leaves_when_it_was_told_to(engine: EngineProcess) -> None:
    question = Question(QUESTION.messages, 1000, leaves_after_tokens=5)
    record = await ask(engine.url, "m", question, now())
    assert record.failure == "left"
    assert len(record.token_times) == 5


async def test_a_client_that_leaves_among_tokens_that_came_together_is_not_cut() -> None:
    async with EngineProcess(slots=8, token_ms=0) as engine:
        questions = [Question(QUESTION.messages, 3000, leaves_after_tokens=5) for _ in range(20)]
        records = [await ask(engine.url, "m", question, now()) for question in questions]
    assert {record.failure for record in records} == {"left"}
    assert any(len(record.token_times) > 5 for record in records)


def test_poisson_keeps_its_rate() -> None:
    times = poisson(50.0, 100.0, random.Random(1))
    assert len(times) == pytest.approx(5000, rel=0.05)
    assert times == sorted(times)
    assert times[-1] < 100.0


async def test_an_open_loop_waits_for_nobody(engine: EngineProcess) -> None:
    await engine.fault("hang", times=1)
    questions = [Question(({"role": "user", "content": str(number)},), 5) for number in range(5)]
    begun = now()
    asking = asyncio.create_task(open_loop([engine.url], "m", questions, [0.02] * 5, begun))
    async with asyncio.timeout(5):
        while (await engine.stats())["served"] < 4:
            assert not asking.done()
    await engine.fault("none")
    records = await asking
    assert [record.due_at for record in records] == [begun + 0.02] * 5
    assert all(record.is_whole for record in records)
