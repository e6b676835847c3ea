"""Answers of the gateway itself, as OpenAI's client reads them."""

import orjson
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from fallback_models.answer import Answer
from gateway.own_answer import frames_of, whole_of
from gateway.request import Request
from gateway.sse import EventSplitter
from tests.gateway.requests import chat, text

ANSWER = Answer("Hello — 日本", "canned", prompt_tokens=3, completion_tokens=4)


def events(request: Request) -> list[bytes]:
    return EventSplitter().feed(frames_of(request, ANSWER))


def test_a_whole_chat() -> None:
    found = ChatCompletion.model_validate_json(whole_of(chat(headers={"x-request-id": "r"}), ANSWER))
    assert (found.id, found.object, found.model) == ("chatcmpl-r", "chat.completion", "canned")
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        ANSWER.text,
        "stop",
    )
    assert found.usage is not None
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.total_tokens) == (3, 4, 7)
    assert found.created > 1_700_000_000


def test_a_whole_text() -> None:
    found = Completion.model_validate_json(whole_of(text(headers={"x-request-id": "r"}), ANSWER))
    assert (found.id, found.object, found.model) == ("cmpl-r", "text_completion", "canned")
    assert (found.choices[0].text, found.choices[0].finish_reason) == (ANSWER.text, "stop")


def test_a_streamed_chat() -> None:
    *chunks, done = events(chat())
    assert done == b"[DONE]"
    parsed = [ChatCompletionChunk.model_validate_json(c) for c in chunks]
    assert parsed[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in parsed) == ANSWER.text
    assert [c.choices[0].finish_reason for c in parsed] == [None, None, "stop"]
    assert len({(c.id, c.created, c.model, c.object) for c in parsed}) == 1
    assert all(c.usage is None for c in parsed)


def test_a_streamed_text() -> None:
    *chunks, done = events(text())
    assert done == b"[DONE]"
    parsed = [orjson.loads(c) for c in chunks]
    assert "".join(c["choices"][0]["text"] for c in parsed) == ANSWER.text
    assert [c["choices"][0]["finish_reason"] for c in parsed] == [None, "stop"]
    assert {c["object"] for c in parsed} == {"text_completion"}


@pytest.mark.parametrize("make", [chat, text])
def test_usage_when_it_is_asked_for(make: type[Request]) -> None:
    *_, last, _ = events(make(stream_options={"include_usage": True}))  # type: ignore[call-arg]
    found = orjson.loads(last)
    assert found["choices"] == []
    assert found["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
