"""What a client may send, and what is refused."""

import re
from typing import Any

import orjson
import pytest

from gateway.errors import BadRequest
from gateway.request import COUNTS, parse_request
from tests.gateway.requests import MESSAGES, chat, request, text


def test_headers() -> None:
    found = chat(
        headers={
            "x-request-id": "r-1",
            "x-session-id": "s-1",
            "x-priority": "Critical",
            "x-request-timeout-seconds": "2.5",
            "x-degradation": "never",
            "traceparent": "00-aa-bb-01",
        }
    )
    assert (found.request_id, found.session, found.priority) == ("r-1", "s-1", "critical")
    assert (found.timeout_s, found.degradation, found.traceparent) == (2.5, "never", "00-aa-bb-01")


def test_without_headers() -> None:
    found = chat()
    assert re.fullmatch("[0-9a-f]{32}", found.request_id)
    assert (found.session, found.priority, found.timeout_s) == ("", "standard", None)
    assert (found.degradation, found.traceparent) == ("allow", "")


def test_nothing_in_a_header_can_end_a_line() -> None:
    found = chat(
        headers={"x-request-id": "a\r\nevil: 1\x00é", "x-session-id": "\n", "traceparent": "x" * 999}
    )
    assert (found.request_id, found.session, len(found.traceparent)) == ("aevil: 1", "", 256)


BROKEN: list[tuple[str, bytes, dict[str, str], str | None]] = [
    ("chat", b"", {}, None),
    ("chat", b"{", {}, None),
    ("chat", b'{"model": NaN}', {}, None),
    ("chat", b"[]", {}, None),
    ("chat", b"null", {}, None),
    ("chat", b'"x"', {}, None),
    ("chat", b"\xff\xfe", {}, None),
    ("chat", b'{"a":' * 3000, {}, None),
    ("chat", b"{}", {}, "model"),
    ("chat", b'{"model": 5}', {}, "model"),
    ("chat", b'{"model": ""}', {}, "model"),
    ("chat", b'{"model": null}', {}, "model"),
    ("chat", b'{"model": "m"}', {}, "messages"),
    ("chat", b'{"model": "m", "messages": []}', {}, "messages"),
    ("chat", b'{"model": "m", "messages": "hi"}', {}, "messages"),
    ("chat", b'{"model": "m", "messages": ["hi"]}', {}, "messages"),
    ("chat", b'{"model": "m", "messages": [{}], "stream": "yes"}', {}, "stream"),
    ("chat", b'{"model": "m", "messages": [{}], "stream": []}', {}, "stream"),
    ("text", b'{"model": "m"}', {}, "prompt"),
    ("text", b'{"model": "m", "prompt": 5}', {}, "prompt"),
    ("text", b'{"model": "m", "prompt": "x"}', {"x-priority": "urgent"}, "x-priority"),
    ("text", b'{"model": "m", "prompt": "x"}', {"x-priority": ""}, "x-priority"),
    *(
        (
            "text",
            b'{"model": "m", "prompt": "x"}',
            {"x-request-timeout-seconds": v},
            "x-request-timeout-seconds",
        )
        for v in ("", "soon", "0", "-1", "nan", "inf", "1e9")
    ),
]


@pytest.mark.parametrize(("kind", "raw", "headers", "param"), BROKEN)
def test_the_client_s_mistakes(kind: Any, raw: bytes, headers: dict[str, str], param: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_request(kind, raw, headers)
    assert caught.value.param == param
    error = orjson.loads(caught.value.to_json())["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]


def test_unknown_fields_stay_in_the_body() -> None:
    assert chat(some_new_field={"x": [1]}).body["some_new_field"] == {"x": [1]}


LIMITS = [
    ({}, None),
    ({"max_tokens": 5}, 5),
    ({"max_completion_tokens": 7}, 7),
    ({"max_completion_tokens": 7, "max_tokens": 5}, 7),
    ({"max_completion_tokens": None, "max_tokens": 5}, 5),  # vLLM 0.32 takes 5, tried
    ({"max_tokens": None}, None),
    ({"max_tokens": "many"}, None),
    ({"max_tokens": 20.0}, 20),  # vLLM takes these two for 20
    ({"max_tokens": "20"}, 20),
    ({"max_tokens": "20.0"}, 20),
    ({"max_tokens": 20.5}, None),
    ({"max_tokens": -1}, None),  # llama.cpp's word for no limit
    ({"max_completion_tokens": "-1", "max_tokens": 5}, None),
]


@pytest.mark.parametrize(("fields", "expected"), LIMITS)
def test_max_tokens(fields: dict[str, Any], expected: int | None) -> None:
    assert chat(**fields).max_tokens == expected


@pytest.mark.parametrize(
    ("stop", "expected"),
    [(None, ()), ("x", ("x",)), ("", ()), (["x", "yz"], ("x", "yz")), (["", 5, "x"], ("x",)), (5, ())],
)
def test_stops(stop: Any, expected: tuple[str, ...]) -> None:
    assert chat(stop=stop).stops == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, False),
        ({}, False),
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        ("x", False),
    ],
)
def test_wants_usage(options: Any, expected: bool) -> None:
    assert chat(stream_options=options).wants_usage is expected


INEXACT = [
    ({}, ""),
    ({"temperature": 1.0, "seed": 3, "top_p": 0.5, "stop": ["x"], "min_tokens": 3, "n": 1}, ""),
    ({"n": 2}, "n"),
    ({"best_of": 3}, "best_of"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"tools": [{"type": "function"}], "tool_choice": "none"}, ""),
    ({"tools": []}, ""),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "text"}}, ""),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"guided_json": {}}, "guided_json"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": False, "top_logprobs": 0}, ""),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"presence_penalty": 0.0, "frequency_penalty": 0}, ""),
    ({"echo": True}, "echo"),
    ({"grammar": 'root ::= "x"'}, "grammar"),  # llama.cpp's and TGI's
    ({"grammar": ""}, ""),
    ({"json_schema": {}}, "json_schema"),
    ({"regex": "x"}, "regex"),  # SGLang's
    ({"ebnf": "x"}, "ebnf"),
    ({"bad_words": ["a b"]}, "bad_words"),
    ({"n_predict": 20}, "n_predict"),
    ({"n": "2"}, "n"),
    ({"n": "1"}, ""),
]


@pytest.mark.parametrize(("fields", "expected"), INEXACT)
def test_what_can_t_be_continued_exactly(fields: dict[str, Any], expected: str) -> None:
    assert chat(**fields).inexact_because == expected


PROMPTS = [
    ("1, 2", ""),
    (["1, 2"], ""),
    ([5, 6, 7], ""),
    (["a", "b"], "several prompts"),
    ([[5, 6], [7]], "several prompts"),
    ([[5, 6]], "several prompts"),
]


@pytest.mark.parametrize(("prompt", "expected"), PROMPTS)
def test_prompts(prompt: Any, expected: str) -> None:
    assert text(prompt=prompt).inexact_because == expected


@pytest.mark.parametrize(("logprobs", "expected"), [(None, ""), (0, "logprobs"), (1, "logprobs")])
def test_zero_logprobs_of_a_text_completion_are_logprobs(logprobs: int | None, expected: str) -> None:
    # vLLM and OpenAI give those of the sampled tokens.
    assert text(logprobs=logprobs).inexact_because == expected


def test_an_embedded_prompt_is_passed_on() -> None:
    assert request("text", {"prompt_embeds": "AAAA"}).kind == "text"


@pytest.mark.parametrize("value", [1e23, 1e308, -1e308, 2.0**60, "9" * 20])
def test_what_is_beyond_every_count_is_the_replica_s_to_refuse(value: float | str) -> None:
    body = chat(max_tokens=value).body
    assert orjson.loads(orjson.dumps(body)) == body


def test_sessions_that_no_header_can_carry_are_told_apart() -> None:
    ids = ["é", "ü", "sé", "sü", "x" * 300, "x" * 301]
    found = {chat(headers={"x-session-id": session}).session for session in ids}
    assert len(found) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{64}", session) for session in found)


@pytest.mark.parametrize(("value", "expected"), [("Never", "never"), (" ALLOW ", "allow"), ("", "allow")])
def test_degradation(value: str, expected: str) -> None:
    assert chat(headers={"x-degradation": value}).degradation == expected


def test_counts_are_written_alike_for_every_replica() -> None:
    body = chat(max_tokens="20", min_tokens=3.0, n="2", best_of=2, max_completion_tokens=None).body
    found = {name: body[name] for name in sorted(COUNTS)}
    assert found == {"best_of": 2, "max_completion_tokens": None, "max_tokens": 20, "min_tokens": 3, "n": 2}


def test_a_body_is_not_changed_by_parsing() -> None:
    assert chat(stream=False).body == {"model": "chat", "messages": MESSAGES, "stream": False}
