"""A stream that lost its replica goes on exactly, wherever it was cut and whatever was asked for."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from loadtests.tokens import LEADS, decode
from tests.integration.client import Answer, Json, Kind, Question, ask, assert_whole
from tests.integration.conftest import Engines
from tests.integration.rig import RunningGateway, serving, tier
from tests.integration.scripted import scripted
from tests.rig import EngineProcess, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KINDS = pytest.mark.parametrize("kind", ["chat", "text"])
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
TOKENS = 60
AS_OFTEN: dict[str, Json] = {"breaker": {"min_count": 1_000_000}, "retry": {"budget_floor_per_s": 1000}}
"""A replica that breaks each of its answers is asked for the next ones all the same, and each of them goes on."""
PROMPTS = [f"Tell me of river number {number}." for number in range(150)]


@dataclass(frozen=True)
class Pair:
    """Two replicas of one make: the first breaks, the second goes on."""

    breaks: EngineProcess
    goes_on: EngineProcess


MAKES: dict[str, Json] = {
    "usual": {},
    "merging": {"tokens_per_event": 3},
    "ignoring ids": {"token_ids": "ignored"},
    "refusing ids": {"token_ids": "refused"},
    "ignoring ids and merging": {"token_ids": "ignored", "tokens_per_event": 3},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=MAKES.values(), ids=MAKES.keys())
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        pair = Pair(*(EngineProcess(token_ms=1, slots=64, **request.param) for _ in range(2)))
        for engine in (pair.breaks, pair.goes_on):
            await stack.enter_async_context(engine)
        yield pair


async def break_all(
    gateway: RunningGateway, pair: Pair, cut_after: int, questions: list[Question]
) -> list[Answer]:
    """Asks all at once of a replica that cuts each answer there."""

    async def is_back() -> bool:
        return await gateway.state_of(pair.breaks) == "ready"

    await eventually(is_back)
    await pair.breaks.fault("cut", after_tokens=cut_after)
    before = [(await engine.stats())["requests"] for engine in (pair.breaks, pair.goes_on)]
    answers = list(await asyncio.gather(*(ask(gateway.url, question) for question in questions)))
    await pair.breaks.fault("none")
    # The first cut puts the replica out of rotation, so those that came later may have met the other one.
    after = [(await engine.stats())["requests"] for engine in (pair.breaks, pair.goes_on)]
    assert after[0] > before[0]
    assert after[1] > before[1]
    return answers


@KINDS
@STREAMED
async def test_any_cut_any_prompt(pair: Pair, config: Path, kind: Kind, stream: bool) -> None:
    rng = random.Random(3)
    async with serving(
        config, tier("primary", pair.breaks, pair.goes_on, probe=None, slots=64), **AS_OFTEN
    ) as gateway:
        for cut in [1, TOKENS - 1, *rng.sample(range(2, TOKENS - 1), 3)]:
            questions = [Question(kind, stream, TOKENS, prompt) for prompt in rng.sample(PROMPTS, 8)]
            answers = await break_all(gateway, pair, cut, questions)
            for question, answer in zip(questions, answers, strict=True):
                assert_whole(question, answer)


OPTIONS: dict[str, Json] = {
    "usage": {"stream_options": {"include_usage": True}},
    "running usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "token ids": {"return_token_ids": True},
    "token ids and usage": {"return_token_ids": True, "stream_options": {"include_usage": True}},
    "a stop never said": {"stop": ["never said", "\x00"]},
    "a minimum": {"min_tokens": 55, "ignore_eos": False},
    "a seed": {"seed": 7, "top_p": 1.0, "temperature": 0, "user": "somebody"},
    "max_completion_tokens": {"max_completion_tokens": TOKENS, "max_tokens": None},
}


@pytest_asyncio.fixture(loop_scope="session")
async def usual(engines: Engines) -> Pair:
    return Pair(*engines.primary)


@KINDS
@STREAMED
@pytest.mark.parametrize("more", OPTIONS.values(), ids=OPTIONS.keys())
async def test_whatever_was_asked_for(
    usual: Pair, config: Path, kind: Kind, stream: bool, more: Json
) -> None:
    if not stream:
        more = {k: v for k, v in more.items() if k != "stream_options"}
    if kind == "text" and "max_completion_tokens" in more:
        pytest.skip("a field of chats alone")
    rng = random.Random(5)
    async with serving(
        config, tier("primary", usual.breaks, usual.goes_on, probe=None, slots=64), **AS_OFTEN
    ) as gateway:
        for cut in (1, rng.randrange(2, TOKENS - 1), TOKENS - 1):
            questions = [Question(kind, stream, TOKENS, p).with_(**more) for p in rng.sample(PROMPTS, 6)]
            if "min_tokens" in more:
                questions = [q for q in questions if q.expected.ids[55:] == ids_to_end(q)[55:]]
            answers = await break_all(gateway, usual, cut, questions)
            for question, answer in zip(questions, answers, strict=True):
                assert_whole(question, answer)
                if more.get("return_token_ids"):
                    assert tuple(answer.token_ids) == question.expected.ids
                    assert prompt_ids_told(answer) == [question.prompt_ids]


def ids_to_end(question: Question) -> tuple[int, ...]:
    from loadtests.tokens import expected_answer

    prompt = question.messages if question.kind == "chat" else question.prompt
    return expected_answer(prompt, question.tokens, min_tokens=55).ids


def prompt_ids_told(answer: Answer) -> list[list[int]]:
    holders = [*(answer.chunks if answer.is_stream else [answer.json]), *answer.choices]
    return [h["prompt_token_ids"] for h in holders if h.get("prompt_token_ids")]


# characters that the cut splits


@KINDS
@STREAMED
@pytest.mark.parametrize("more", [{}, {"return_token_ids": True}, {"stop": ["never said"]}], ids=str)
async def test_a_character_that_the_cut_splits(
    usual: Pair, config: Path, kind: Kind, stream: bool, more: Json
) -> None:
    questions = [Question(kind, stream, TOKENS, prompt).with_(**more) for prompt in PROMPTS]
    split = [(q, i + 1) for q in questions for i, t in enumerate(q.expected.ids[:-2]) if t in LEADS]
    async with serving(
        config, tier("primary", usual.breaks, usual.goes_on, probe=None, slots=64), **AS_OFTEN
    ) as gateway:
        for question, cut in random.Random(1).sample(split, 6):
            (answer,) = await break_all(gateway, usual, cut, [question])
            assert_whole(question, answer)
            if more.get("return_token_ids"):
                assert tuple(answer.token_ids) == question.expected.ids


@KINDS
@STREAMED
async def test_a_character_that_a_merged_event_splits(config: Path, kind: Kind, stream: bool) -> None:
    """Its text says nothing of the last id, which is half of what comes next."""
    ends = range(3, TOKENS - 2, 3)
    questions = [Question(kind, stream, TOKENS, prompt) for prompt in PROMPTS]
    split = [(q, end) for q in questions for end in ends if q.expected.ids[end - 1] in LEADS]
    made = [EngineProcess(token_ms=1, slots=64, **MAKES["merging"]) for _ in range(2)]
    async with AsyncExitStack() as stack:
        pair = Pair(*[await stack.enter_async_context(engine) for engine in made])
        gateway = await stack.enter_async_context(
            serving(config, tier("primary", pair.breaks, pair.goes_on, probe=None, slots=64), **AS_OFTEN)
        )
        for question, end in random.Random(1).sample(split, 6):
            # Several at once, as the first of them may be sent to the other replica.
            for answer in await break_all(gateway, pair, end + 1, [question] * 4):
                assert_whole(question, answer)


# stop strings


@dataclass(frozen=True)
class Stopped:
    """An answer that a stop string ends."""

    question: Question
    stop: str
    cut: int

    @property
    def n_tokens(self) -> int:
        ids = self.question.expected.ids
        return next(n for n in range(1, len(ids) + 1) if self.stop in decode(ids[:n]))

    def text(self, is_included: bool) -> str:
        before, stop, _ = decode(self.question.expected.ids[: self.n_tokens]).partition(self.stop)
        return before + (stop if is_included else "")


def stopped(question: Question, cut: int, before: int, after: int) -> Stopped | None:
    """A stop string of so many characters before the cut and after it, if it is said there first."""
    ids = question.expected.ids
    said = decode(ids[:cut])
    stop = said[-before:] + decode(ids[: cut + 4])[len(said) :][:after] if before else ""
    stop = stop or decode(ids[: cut + 4])[len(said) :][:after]
    found = Stopped(question, stop, cut)
    is_there = question.expected.text.find(stop) == len(said) - before
    return found if is_there and found.n_tokens > cut else None


@KINDS
@STREAMED
@pytest.mark.parametrize("is_included", [False, True], ids=["left out", "included"])
@pytest.mark.parametrize(("before", "after"), [(0, 6), (1, 5), (3, 3), (8, 2), (4, 9)])
async def test_a_stop_string_at_the_seam(
    usual: Pair, config: Path, kind: Kind, stream: bool, is_included: bool, before: int, after: int
) -> None:
    """Begun before the cut and ended after it, or right after it."""
    rng = random.Random(before * 16 + after)
    async with serving(
        config, tier("primary", usual.breaks, usual.goes_on, probe=None, slots=64), **AS_OFTEN
    ) as gateway:
        tried = 0
        while tried < 4:
            question = Question(kind, stream, TOKENS, rng.choice(PROMPTS))
            case = stopped(question, rng.randrange(4, TOKENS - 6), before, after)
            if case is None:
                continue
            tried += 1
            more: Json = {"stop": [case.stop, "never said"], "include_stop_str_in_output": is_included}
            if stream:
                more["stream_options"] = {"include_usage": True}
            (answer,) = await break_all(gateway, usual, case.cut, [question.with_(**more)])
            assert answer.status == 200
            assert answer.text == case.text(is_included), case
            assert answer.finish_reasons == ["stop"]
            assert [c["stop_reason"] for c in answer.choices if c.get("stop_reason")] == [case.stop]
            assert answer.dones == stream
            # An engine that was asked to hold back text has generated some tokens more by then.
            assert 0 <= answer.usages[0]["completion_tokens"] - case.n_tokens <= len(case.stop), case


@KINDS
@STREAMED
async def test_a_stop_string_well_before_or_after_the_cut(
    usual: Pair, config: Path, kind: Kind, stream: bool
) -> None:
    rng = random.Random(11)
    async with serving(
        config, tier("primary", usual.breaks, usual.goes_on, probe=None, slots=64), **AS_OFTEN
    ) as gateway:
        for _ in range(6):
            question = Question(kind, stream, TOKENS, rng.choice(PROMPTS))
            text = question.expected.text
            at = rng.randrange(len(text) // 2, len(text) - 12)
            stop = text[at : at + rng.randrange(2, 12)]
            case = Stopped(question, stop, rng.randrange(1, 10))
            if case.n_tokens <= case.cut + 3:
                continue
            (answer,) = await break_all(gateway, usual, case.cut, [question.with_(stop=stop)])
            assert answer.text == case.text(is_included=False)
            assert answer.finish_reasons == ["stop"]


@STREAMED
async def test_nothing_that_comes_behind_a_stop_string_at_the_seam_is_told(
    config: Path, stream: bool
) -> None:
    """The engine that goes on saw only its second half, so it speaks on, ends for its own reason and counts too much."""
    question = Question("text", stream, 9).with_(stop=["two three"])
    first = [_event("one ", 1, prompt_token_ids=[7]), _event("two ", 2)]
    second = [
        _event("three ", 3),
        _event("four", 4),
        _event("", 5, finish_reason="length"),
        b"data: [DONE]\n\n",
    ]
    async with scripted() as one, scripted() as two:
        one.pieces, two.pieces = [b"".join(first)], [b"".join(second)]
        async with serving(config, tier("primary", one.url, two.url, probe=None)) as gateway:
            answer = await ask(gateway.url, question)
            assert answer.text.removesuffix("two ") == "one "
            assert (answer.finish_reasons, answer.dones, answer.errors) == (["stop"], stream, [])
            assert (one.requests, two.requests) == (1, 1)


# the end at the cut


def _event(text: str, token_id: int, **more: object) -> bytes:
    choice = {"index": 0, "text": text, "token_ids": [token_id], "finish_reason": None, **more}
    head = {"id": "c-1", "object": "text_completion", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**head, "choices": [choice]}).encode() + b"\n\n"


@STREAMED
@pytest.mark.parametrize("has_finish", [False, True], ids=["before its finish reason", "before [DONE]"])
async def test_an_answer_that_has_all_its_tokens_is_ended_without_a_replica(
    config: Path, stream: bool, has_finish: bool
) -> None:
    """The client gets the end that it is owed."""
    question = Question("text", stream, 3)
    if stream:
        question = question.with_(stream_options={"include_usage": True})
    ids = question.expected.ids
    texts = [decode(ids[: n + 1])[len(decode(ids[:n])) :] for n in range(3)]
    events = [_event(t, i) for t, i in zip(texts, ids, strict=True)]
    events[0] = _event(texts[0], ids[0], prompt_token_ids=question.prompt_ids)
    if has_finish:
        events[-1] = _event(texts[-1], ids[-1], finish_reason="length")
    async with scripted() as one, scripted() as two:
        one.pieces = [b"".join(events)]
        async with serving(config, tier("primary", one.url, two.url, probe=None)) as gateway:
            assert_whole(question, await ask(gateway.url, question))
            assert two.requests == 0


@STREAMED
async def test_an_answer_without_token_ids_is_ended_once_its_tokens_are_counted(
    config: Path, stream: bool
) -> None:
    """All of them came in one event, so that only a tokenizer knows that none is missing."""
    question = Question("text", stream, 3)
    whole = _event(question.expected.text, 0, token_ids=None)
    async with scripted() as one, EngineProcess(token_ms=1, token_ids="ignored") as two:
        one.pieces = [whole]
        async with serving(config, tier("primary", one.url, two, probe=None), **AS_OFTEN) as gateway:
            while not one.requests:
                answer = await ask(gateway.url, question)
                assert (answer.text, answer.errors) == (question.expected.text, [])
                assert (answer.finish_reasons, answer.dones) == (["length"], stream)


# many breaks in one answer


@KINDS
@STREAMED
async def test_an_answer_may_break_again_and_again(
    engines: Engines, config: Path, kind: Kind, stream: bool
) -> None:
    """Each replica gives seven tokens and an error event; the answer is one all the same."""
    question = Question(kind, stream, 40)
    if stream:
        question = question.with_(stream_options={"include_usage": True})
    async with EngineProcess(token_ms=1) as third:
        replicas = (*engines.primary, third)
        async with serving(
            config, tier("primary", *replicas, probe=None), breaker={"min_count": 99}
        ) as gateway:
            for engine in replicas:
                await engine.fault("error_event", after_tokens=7)
            assert_whole(question, await ask(gateway.url, question))
