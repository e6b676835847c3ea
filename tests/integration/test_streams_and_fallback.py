"""A replica fails while it answers: the client gets the whole answer, or is told; never a silent end."""

import json
from pathlib import Path

import pytest

from tests.integration.client import (
    Kind,
    Question,
    ask,
    assert_broken,
    assert_refused,
    assert_whole,
)
from tests.integration.conftest import Engines
from tests.integration.rig import BRISK, Json, all_idle, attempts, canned, serving, tier
from tests.integration.scripted import scripted
from tests.rig import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KINDS = pytest.mark.parametrize("kind", ["chat", "text"])
STREAMED = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


def faults(**known: Json) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fault", known.values(), ids=known.keys())


LEAVES_ROTATION: dict[str, Json] = {
    "cut": {"kind": "cut"},
    "reset": {"kind": "cut", "reset": True},
    "die": {"kind": "die"},
    "silent": {"kind": "hang"},
}
STAYS: dict[str, Json] = {"malformed": {"kind": "malformed"}, "error_event": {"kind": "error_event"}}
BEFORE_ANY_TOKEN: dict[str, Json] = {
    "http_500": {"kind": "error", "status": 500},
    "http_502": {"kind": "error", "status": 502},
    "cut": {"kind": "cut", "after_tokens": 0},
    "reset": {"kind": "cut", "after_tokens": 0, "reset": True},
    "silent": {"kind": "hang", "after_tokens": 0},
    "malformed": {"kind": "malformed", "after_tokens": 0},
    "error_event": {"kind": "error_event", "after_tokens": 0},
    "role_then_error": {"kind": "role_then_error"},
    "role_then_reset": {"kind": "role_then_error", "reset": True},
    "no_tokens": {"kind": "no_tokens"},
}


# 1: a stream breaks


SLOW_TO_TRUST: Json = {"up_after": 50}
"""A replica that left rotation stays out for longer than a broken stream waits for it."""


@KINDS
@STREAMED
@faults(**LEAVES_ROTATION, **STAYS)
async def test_a_stream_that_breaks_goes_on(
    engines: Engines, config: Path, kind: Kind, stream: bool, fault: Json
) -> None:
    question = Question(kind, stream, 60)
    async with serving(config, tier("primary", *engines.primary, probe=None, slo=BRISK)) as gateway:
        await engines.a.fault(**fault, after_tokens=40)
        answer = await ask(gateway.url, question)
        assert_whole(question, answer)
        assert answer.models == {"m"}
        assert answer.longest_gap_s < 3.0
        assert "x-degraded" not in answer.headers
        if fault["kind"] != "die":
            assert len(await attempts(answer.request_id, *engines.all)) == 2
        await all_idle(gateway, *engines.all)


@pytest.mark.usefixtures("brief_hope")
@KINDS
@faults(**LEAVES_ROTATION)
async def test_a_stream_that_nobody_can_go_on_with_says_so(
    engines: Engines, config: Path, kind: Kind, fault: Json
) -> None:
    question = Question(kind, True, 60)
    async with serving(
        config, tier("primary", engines.a, probe=None, slo=BRISK), health=SLOW_TO_TRUST
    ) as gateway:
        await engines.a.fault(**fault, after_tokens=40)
        answer = await ask(gateway.url, question)
        assert_broken(question, answer)
        await all_idle(gateway, *engines.all)


@KINDS
@faults(**STAYS)
async def test_a_replica_that_stays_in_rotation_may_go_on_itself(
    engines: Engines, config: Path, kind: Kind, fault: Json
) -> None:
    question = Question(kind, True, 60)
    async with serving(config, tier("primary", engines.a, probe=None)) as gateway:
        await engines.a.fault(**fault, after_tokens=40, times=1)
        assert_whole(question, await ask(gateway.url, question))
        await all_idle(gateway, *engines.all)


@KINDS
@STREAMED
@faults(**LEAVES_ROTATION)
async def test_another_tier_goes_on_and_the_seam_shows(
    engines: Engines, config: Path, kind: Kind, stream: bool, fault: Json
) -> None:
    question = Question(kind, stream, 60)
    tiers = [tier("primary", engines.a, probe=None, slo=BRISK), tier("small", engines.small, probe=None)]
    async with serving(config, *tiers, health=SLOW_TO_TRUST) as gateway:
        await engines.a.fault(**fault, after_tokens=40)
        answer = await ask(gateway.url, question)
        # The simulated engines speak one language, so that a spliced answer reads like an undisturbed one.
        assert_whole(question, answer)
        if stream:
            assert answer.models == {"m", "small"}
            assert answer.spliced
            assert answer.headers["x-served-tier"] == "primary"
        else:
            assert answer.models == {"small"}
            assert answer.headers["x-served-tier"] == "small"
            assert answer.headers["x-degraded"]
        await all_idle(gateway, *engines.all)


# 2 and 3: nothing came, from nobody


@KINDS
@STREAMED
@faults(**BEFORE_ANY_TOKEN)
async def test_a_failure_before_any_token_is_invisible(
    engines: Engines, config: Path, kind: Kind, stream: bool, fault: Json
) -> None:
    question = Question(kind, stream, 10)
    async with serving(config, tier("primary", *engines.primary, probe=None, slo=BRISK)) as gateway:
        await engines.a.fault(**fault)
        answers = [await ask(gateway.url, question) for _ in range(4)]
        for answer in answers:
            assert_whole(question, answer)
            assert answer.headers["x-served-replica"] in engines.b.url
        assert (await engines.a.stats())["requests"] > 0
        await all_idle(gateway, *engines.all)


@KINDS
@faults(**BEFORE_ANY_TOKEN)
async def test_an_answer_of_one_token_is_had_from_another(
    engines: Engines, config: Path, kind: Kind, fault: Json
) -> None:
    question = Question(kind, False, 1)
    async with serving(config, tier("primary", *engines.primary, probe=None, slo=BRISK)) as gateway:
        await engines.a.fault(**fault)
        for answer in [await ask(gateway.url, question) for _ in range(4)]:
            assert_whole(question, answer)
            assert answer.headers["x-served-replica"] in engines.b.url
        assert (await engines.a.stats())["requests"] > 0
        await all_idle(gateway, *engines.all)


@KINDS
async def test_an_answer_of_one_token_is_the_replica_s_own(
    engines: Engines, config: Path, kind: Kind
) -> None:
    """Nothing in it could be gone on with, so nobody asks for it in pieces; it counts like any other."""
    question = Question(kind, False, 1)
    async with serving(config, tier("primary", engines.a, probe=None)) as gateway:
        answer = await ask(gateway.url, question)
        assert_whole(question, answer)
        (seen,) = await attempts(answer.request_id, engines.a)
        assert seen["json"] == {**question.body, "model": "m"}
        assert await gateway.metric("graceway_tokens_total", tier="primary") == 1
        assert await gateway.metric("graceway_ttft_seconds_count", tier="primary") == 1
        await all_idle(gateway, *engines.all)


@KINDS
@STREAMED
@faults(**BEFORE_ANY_TOKEN)
async def test_when_the_fallback_fails_too_it_is_an_error_with_a_status(
    engines: Engines, config: Path, kind: Kind, stream: bool, fault: Json
) -> None:
    tiers = [
        tier("primary", engines.a, probe=None, slo=BRISK),
        tier("small", engines.small, probe=None, slo=BRISK),
    ]
    async with serving(config, *tiers) as gateway:
        await engines.a.fault(**fault)
        await engines.small.fault(**fault)
        answer = await ask(gateway.url, Question(kind, stream, 10))
        assert_refused(answer, 503, "no_replica")
        assert len(await attempts(answer.request_id, *engines.all)) == 2
        await all_idle(gateway, *engines.all)


@KINDS
@STREAMED
async def test_no_token_is_never_success(engines: Engines, config: Path, kind: Kind, stream: bool) -> None:
    tiers = [tier("primary", engines.a, probe=None), canned("Later.")]
    async with serving(config, *tiers) as gateway:
        await engines.a.fault("no_tokens")
        answer = await ask(gateway.url, Question(kind, stream))
        assert (answer.text, answer.headers["x-served-tier"]) == ("Later.", "canned")
        assert answer.headers["x-degraded"] == "no_tokens"
        never = await ask(gateway.url, Question(kind, stream).with_({"x-degradation": "never"}))
        assert never.status == 503
        assert not await gateway.metric("graceway_attempts_total", result="success")


# 4 and 5: what the caller accepts, and what it is told


@pytest.mark.usefixtures("brief_hope")
@KINDS
@STREAMED
@pytest.mark.parametrize("limit", ["never", "primary"])
@pytest.mark.parametrize("after_tokens", [0, 1, 40])
async def test_the_callers_limit_holds_at_every_point(
    engines: Engines, config: Path, kind: Kind, stream: bool, limit: str, after_tokens: int
) -> None:
    question = Question(kind, stream, 60).with_({"x-degradation": limit})
    tiers = [tier("primary", engines.a, probe=None), tier("small", engines.small, probe=None), canned()]
    async with serving(config, *tiers, health=SLOW_TO_TRUST) as gateway:
        await engines.a.fault("cut", after_tokens=after_tokens)
        answer = await ask(gateway.url, question)
        if stream and after_tokens:
            assert_broken(question, answer)
        else:
            assert_refused(answer, 503, "no_replica")
        assert (await engines.small.stats())["requests"] == 0


@KINDS
@STREAMED
async def test_a_fallback_names_itself_everywhere(
    engines: Engines, config: Path, kind: Kind, stream: bool
) -> None:
    question = Question(kind, stream, 12)
    if stream:
        question = question.with_(stream_options={"include_usage": True})
    tiers = [tier("primary", engines.a, probe=None), tier("small", engines.small, probe=None)]
    async with serving(config, *tiers) as gateway:
        await engines.a.fault("error", status=500)
        answer = await ask(gateway.url, question)
        assert_whole(question, answer)
        assert answer.models == {"small"}
        assert answer.headers["x-served-tier"] == "small"
        assert answer.headers["x-served-replica"] in engines.small.url
        assert answer.headers["x-degraded"] == "http_500"
        assert await gateway.metric("graceway_tokens_total", tier="small") == 12
        assert await gateway.metric("graceway_tokens_total", tier="primary") == 0
        assert await gateway.metric("graceway_degraded_total", tier="small", reason="http_500") == 1
        assert await gateway.metric("graceway_requests_total", tier="small", outcome="degraded") == 1


# 6 and 7: the next attempt


@KINDS
@pytest.mark.parametrize("is_reset", [False, True])
async def test_start_up_frames_wait_for_content(
    engines: Engines, config: Path, kind: Kind, is_reset: bool
) -> None:
    """The role of the attempt that failed is not told, nor its id."""
    question = Question(kind, True, 12)
    async with serving(config, tier("primary", *engines.primary, probe=None)) as gateway:
        for engine in engines.primary:
            await engine.fault("role_then_error", reset=is_reset, times=1)
        first = await ask(gateway.url, question)
        assert first.status == 503
        assert not first.is_stream

        async def healed() -> bool:
            return all(r["state"] == "ready" for r in (await gateway.replicas()).values())

        await eventually(healed)
        assert_whole(question, await ask(gateway.url, question))


@KINDS
@STREAMED
async def test_each_attempt_starts_fresh(engines: Engines, config: Path, kind: Kind, stream: bool) -> None:
    question = Question(kind, stream, 12).with_(user="somebody", stop=["never said"])
    tiers = [tier("primary", *engines.primary, probe=None), tier("small", engines.small, probe=None)]
    async with serving(config, *tiers) as gateway:
        await engines.a.fault("role_then_error", reset=True)
        await engines.b.fault("error_event", after_tokens=0)
        answer = await ask(gateway.url, question)
        assert_whole(question, answer)
        seen = await attempts(answer.request_id, *engines.all)
        assert len(seen) == 3
        assert len({r["path"] for r in seen}) == 1
        bodies = [{k: v for k, v in r["json"].items() if k != "model"} for r in seen]
        assert bodies[0] == bodies[1] == bodies[2]
        assert {k: bodies[0][k] for k in ("user", "stop", "max_tokens")} == {
            "user": "somebody",
            "stop": ["never said"],
            "max_tokens": 12,
        }


# 8: what can't be continued exactly

INEXACT: dict[str, Json] = {
    "n": {"n": 2},
    "logprobs": {"logprobs": True},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    "response_format": {"response_format": {"type": "json_object"}},
    "guided_json": {"guided_json": {"type": "object"}},
    "structured_outputs": {"structured_outputs": {"json": {"type": "object"}}},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": -0.5},
}


@pytest.mark.parametrize("more", INEXACT.values(), ids=INEXACT.keys())
@KINDS
async def test_what_has_no_exact_continuation_is_not_guessed(
    engines: Engines, config: Path, kind: Kind, more: Json
) -> None:
    if kind == "text":
        more = {k: 1 if k == "logprobs" else v for k, v in more.items()}
    tiers = [tier("primary", *engines.primary, probe=None), tier("small", engines.small, probe=None)]
    async with serving(config, *tiers) as gateway:
        await engines.a.fault("cut", after_tokens=5)
        await engines.b.fault("cut", after_tokens=5)
        question = Question(kind, True, 30).with_(**more)
        answer = await ask(gateway.url, question)
        assert (answer.status, answer.dones, len(answer.errors)) == (200, 0, 1)
        assert "error" in answer.events[-1]
        assert not answer.is_cut
        name = next(iter(more))
        assert name in answer.errors[0]["error"]["message"]
        assert len(await attempts(answer.request_id, *engines.all)) == 1
        await all_idle(gateway, *engines.all)


@pytest.mark.parametrize("more", INEXACT.values(), ids=INEXACT.keys())
@KINDS
async def test_what_has_no_exact_continuation_is_begun_anew_while_nothing_was_told(
    engines: Engines, config: Path, kind: Kind, more: Json
) -> None:
    if kind == "text":
        more = {k: 1 if k == "logprobs" else v for k, v in more.items()}
    tiers = [tier("primary", *engines.primary, probe=None)]
    async with serving(config, *tiers) as gateway:
        await engines.a.fault("cut", after_tokens=5)
        for _ in range(3):
            question = Question(kind, False, 12).with_(**more)
            answer = await ask(gateway.url, question)
            assert answer.status == 200
            assert answer.headers["x-served-replica"] in engines.b.url
            assert len(answer.json["choices"]) == more.get("n", 1)
            first = answer.json["choices"][0]
            assert (
                first["text"] if kind == "text" else first["message"]["content"]
            ) == question.expected.text


# 9: any split of the bytes


def _events(newline: str, noise: bool) -> bytes:
    """A short answer with characters of two to four bytes."""

    def event(payload: Json | str) -> str:
        data = payload if isinstance(payload, str) else json.dumps(payload, ensure_ascii=False)
        lines = [": a comment", "event: message", "id: 7", f"data: {data}"] if noise else [f"data: {data}"]
        return newline.join([*lines, "", ""])

    head = {"id": "c-1", "object": "text_completion", "created": 1, "model": "m"}
    texts = ["añb", "水", "🦀.\n"]
    choices = [{"index": 0, "text": t, "finish_reason": None} for t in texts]
    choices[-1]["finish_reason"] = "stop"
    return "".join(event({**head, "choices": [c]}) for c in choices).encode() + event("[DONE]").encode()


@pytest.mark.parametrize("noise", [False, True], ids=["plain", "comments"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
async def test_any_split_of_a_stream_parses(config: Path, newline: str, noise: bool) -> None:
    body = _events(newline, noise)
    async with scripted() as upstream, serving(config, tier("primary", upstream.url, probe=None)) as gateway:
        one_by_one = [body[i : i + 1] for i in range(len(body))]
        splits = [one_by_one, [body], *([body[:i], body[i:]] for i in range(1, len(body), 3))]
        for pieces in splits:
            upstream.pieces = pieces
            answer = await ask(gateway.url, Question("text", True))
            assert answer.text == "añb水🦀.\n", pieces
            assert (answer.finish_reasons, answer.dones, answer.errors) == (["stop"], 1, [])
        assert upstream.requests == len(splits)


WRONG_EVENTS: list[bytes] = [
    b"not JSON",
    b'{"choices": [',
    b"[]",
    b"null",
    b'"text"',
    b"{}",
    b'{"choices": null}',
    b'{"choices": 5}',
    b'{"choices": [5]}',
    b'{"choices": [{"index": 0, "text": 5}]}',
    b'{"choices": [{"index": 0, "text": ["x"]}]}',
    b'{"choices": [{"index": 0, "delta": "x"}]}',
    b'{"choices": [{"index": 0, "delta": {"content": 5}}]}',
    b'{"choices": [{"index": 0, "text": "x", "token_ids": "abc"}]}',
    b'{"choices": [{"index": 0, "text": "x", "token_ids": ["a"]}]}',
    b'{"choices": [{"index": 0, "text": "x", "token_ids": 7}]}',
    b'{"choices": [{"index": 0, "text": "x", "finish_reason": 5}]}',
    b'{"choices": [{"index": 0, "text": "\xff"}]}',
    b'{"choices": [], "usage": {"completion_tokens": "x"}}',
    b'{"choices": [], "usage": [1]}',
    b'{"error": "out of order"}',
    b'{"error": {"message": "out of order"}}',
    b'{"object": "error", "message": "out of order", "code": 500}',
    b'{"choices": [{"index": 0, "text": "x", "finish_reason": "error"}]}',
    b'{"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]}',
    b"[DONE]",
]


def _text_event(text: str, finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason}
    payload = {"id": "c-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


@STREAMED
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("event", WRONG_EVENTS, ids=[e.decode("latin-1") for e in WRONG_EVENTS])
async def test_any_malformed_event_is_a_break_and_nothing_before_it_is_lost(
    config: Path, event: bytes, is_first: bool, stream: bool
) -> None:
    """In the same read as the events around it: the client gets those before, and nothing of those after."""
    before = b"" if is_first else _text_event("one ") + _text_event("two ")
    wrong = before + b"data: " + event + b"\n\n" + _text_event("three ", "stop") + b"data: [DONE]\n\n"
    right = _text_event("four", "stop") + b"data: [DONE]\n\n"
    async with scripted() as one, scripted() as two:
        one.pieces, two.pieces = [wrong], [right]
        async with serving(config, tier("primary", one.url, two.url, probe=None)) as gateway:
            answer = await ask(gateway.url, Question("text", stream))
            assert answer.status == 200, answer.raw
            assert answer.text == ("four" if is_first else "one two four"), answer.raw
            assert (answer.finish_reasons, answer.errors) == (["stop"], [])
            assert answer.dones == stream
            assert (one.requests, two.requests) == (1, 1)


# 10: usage after a resume


@KINDS
@faults(**LEAVES_ROTATION, **STAYS)
@pytest.mark.parametrize("after_tokens", [1, 20, 39])
async def test_usage_is_told_once_and_counts_each_token_once(
    engines: Engines, config: Path, kind: Kind, fault: Json, after_tokens: int
) -> None:
    question = Question(kind, True, 40).with_(stream_options={"include_usage": True})
    async with serving(config, tier("primary", *engines.primary, probe=None, slo=BRISK)) as gateway:
        await engines.a.fault(**fault, after_tokens=after_tokens)
        assert_whole(question, await ask(gateway.url, question))


@KINDS
async def test_usage_that_is_asked_for_all_along_only_grows(
    engines: Engines, config: Path, kind: Kind
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    question = Question(kind, True, 40).with_(stream_options=options)
    async with serving(config, tier("primary", *engines.primary, probe=None)) as gateway:
        await engines.a.fault("cut", after_tokens=17)
        answer = await ask(gateway.url, question)
        assert_whole(question, answer)
        counts = [e["usage"]["completion_tokens"] for e in answer.chunks if e["choices"]]
        assert counts == sorted(counts)
        assert counts[-1] == 40
        assert {e["usage"]["prompt_tokens"] for e in answer.chunks} == {len(question.prompt_ids)}
        assert all(
            e["usage"]["total_tokens"] == e["usage"]["prompt_tokens"] + e["usage"]["completion_tokens"]
            for e in answer.chunks
        )
