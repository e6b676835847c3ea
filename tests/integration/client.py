"""A client that keeps everything it gets, and knows what an undisturbed answer looks like."""

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import uuid4

import aiohttp

from loadtests.tokens import Answer as Expected
from loadtests.tokens import expected_answer, prompt_ids

Json = dict[str, Any]
Kind = Literal["chat", "text"]
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}
NAMES = {"chat": ("chat.completion.chunk", "chat.completion"), "text": ("text_completion", "text_completion")}


@dataclass(frozen=True)
class Question:
    """One request, and what is the right answer to it."""

    kind: Kind = "chat"
    stream: bool = True
    tokens: int = 40
    prompt: str = "Tell me of rivers and rain."
    more: Json = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    model: str = "chat"

    def with_(self, headers: dict[str, str] | None = None, **more: Any) -> "Question":
        return replace(self, more={**self.more, **more}, headers={**self.headers, **(headers or {})})

    @property
    def messages(self) -> list[dict[str, object]]:
        return [{"role": "user", "content": self.prompt}]

    @property
    def body(self) -> Json:
        asked: Json = {"messages": self.messages} if self.kind == "chat" else {"prompt": self.prompt}
        base = {"model": self.model, "max_tokens": self.tokens, "ignore_eos": True, "temperature": 0}
        return {**base, **asked, "stream": self.stream, **self.more}

    @property
    def prompt_ids(self) -> list[int]:
        return prompt_ids(self.messages if self.kind == "chat" else self.prompt)

    @property
    def expected(self) -> Expected:
        return expected_answer(
            self.messages if self.kind == "chat" else self.prompt, self.tokens, ignore_eos=True
        )


@dataclass
class Answer:
    """What came: status, headers, every event with its time, or one body."""

    request_id: str = ""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes = b""
    events: list[Json] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    dones: int = 0
    after_done: int = 0
    is_cut: bool = False
    """The connection ended before the answer did."""

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def json(self) -> Json:
        parsed: Json = json.loads(self.raw)
        return parsed

    @property
    def errors(self) -> list[Json]:
        return [e for e in self.events if "error" in e]

    @property
    def chunks(self) -> list[Json]:
        return [e for e in self.events if "error" not in e]

    @property
    def choices(self) -> list[Json]:
        return [c for e in (self.chunks if self.is_stream else [self.json]) for c in e["choices"]]

    @property
    def text(self) -> str:
        return "".join(_text(c) for c in self.choices)

    @property
    def token_ids(self) -> list[int]:
        return [i for c in self.choices for i in c.get("token_ids") or []]

    @property
    def finish_reasons(self) -> list[str]:
        return [c["finish_reason"] for c in self.choices if c.get("finish_reason")]

    @property
    def models(self) -> set[str]:
        return {e["model"] for e in (self.chunks if self.is_stream else [self.json])}

    @property
    def usages(self) -> list[Json]:
        """Of the events that carry usage and no choice, or of the whole answer."""
        if not self.is_stream:
            return [self.json["usage"]]
        return [e["usage"] for e in self.chunks if e.get("usage") and not e["choices"]]

    @property
    def spliced(self) -> list[Json]:
        return [e["graceway"] for e in self.chunks if "graceway" in e]

    @property
    def longest_gap_s(self) -> float:
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


def _text(choice: Json) -> str:
    part = choice.get("delta", choice.get("message"))
    return str((choice.get("text") if part is None else part.get("content")) or "")


async def ask(url: str, question: Question, leave_after_tokens: int | None = None) -> Answer:
    """Asks, and reads to the end or until so many events with text have come; then hangs up."""
    request_id = question.headers.get("x-request-id", uuid4().hex)
    answer = Answer(request_id)
    headers = {**question.headers, "x-request-id": request_id}
    timeout = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        try:
            async with http.post(url + PATHS[question.kind], json=question.body, headers=headers) as response:
                answer.status = response.status
                answer.headers = {k.lower(): v for k, v in response.headers.items()}
                await _read(answer, response, leave_after_tokens)
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError):
            answer.is_cut = True
    return answer


async def _read(answer: Answer, response: aiohttp.ClientResponse, leave_after_tokens: int | None) -> None:
    loop, rest, said = asyncio.get_running_loop(), b"", 0
    async for data in response.content.iter_any():
        answer.raw += data
        if not answer.is_stream:
            continue
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(b": "):
                continue  # a comment, which clients pass over
            assert event.startswith(b"data: "), event
            _enter(answer, event[6:], loop.time())
            said += any(_text(c) for e in answer.events[-1:] for c in e.get("choices", ()))
        if leave_after_tokens is not None and said >= leave_after_tokens:
            response.close()
            return
    assert not rest, rest


def _enter(answer: Answer, data: bytes, now: float) -> None:
    answer.after_done += answer.dones
    if data == b"[DONE]":
        answer.dones += 1
        return
    answer.events.append(json.loads(data))
    answer.times.append(now)


def assert_whole(question: Question, answer: Answer) -> None:
    """The answer is, from the outside, what an undisturbed run gives: text, shape, ids, end and counts."""
    assert answer.status == 200, (answer.status, answer.raw[:500])
    expected = question.expected
    assert not answer.is_cut
    assert answer.text == expected.text
    assert answer.finish_reasons == [expected.finish_reason]
    if question.stream:
        _assert_stream(question, answer)
    else:
        assert answer.json["object"] == NAMES[question.kind][1]
        assert answer.json["id"]
        _assert_usage(question, answer.json["usage"])
    assert_discloses(answer)


def assert_discloses(answer: Answer) -> None:
    assert answer.headers["x-request-id"] == answer.request_id
    assert answer.headers["x-served-tier"]
    assert answer.headers["x-served-replica"]


def _assert_stream(question: Question, answer: Answer) -> None:
    assert answer.is_stream
    assert answer.errors == []
    assert (answer.dones, answer.after_done) == (1, 0)
    assert len({e["id"] for e in answer.chunks}) == 1
    assert len({e["created"] for e in answer.chunks}) == 1
    assert {e["object"] for e in answer.chunks} == {NAMES[question.kind][0]}
    roles = [c["delta"]["role"] for c in answer.choices if "role" in c.get("delta", {})]
    assert roles == (["assistant"] if question.kind == "chat" else [])
    assert all(("delta" in c) == (question.kind == "chat") for c in answer.choices)
    if not question.more.get("return_token_ids"):
        assert not any(c.get("token_ids") or c.get("prompt_token_ids") for c in answer.choices)
        assert not any(e.get("prompt_token_ids") for e in answer.chunks)
    wants_usage = bool((question.more.get("stream_options") or {}).get("include_usage"))
    assert len(answer.usages) == wants_usage
    if wants_usage:
        assert answer.chunks[-1]["choices"] == []
        _assert_usage(question, answer.usages[0])


def _assert_usage(question: Question, usage: Json) -> None:
    prompt, said = len(question.prompt_ids), len(question.expected.ids)
    counted = (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"])
    assert counted == (prompt, said, prompt + said)


def assert_broken(question: Question, answer: Answer) -> None:
    """The stream began, could not be finished, and says so: a true beginning, one error event, no `[DONE]`."""
    assert answer.status == 200
    assert not answer.is_cut
    assert answer.dones == 0
    assert len(answer.errors) == 1
    assert "error" in answer.events[-1]
    assert {"message", "type", "param", "code"} <= answer.errors[0]["error"].keys()
    assert answer.finish_reasons == []
    assert question.expected.text.startswith(answer.text)


def assert_refused(answer: Answer, status: int, reason: str) -> None:
    """No answer, in OpenAI's error form, with the reason."""
    assert (answer.status, answer.headers.get("x-shed-reason")) == (status, reason), answer.raw[:300]
    assert answer.headers["content-type"] == "application/json"
    error = answer.json["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert error["code"] == reason
    assert answer.headers["x-request-id"] == answer.request_id
