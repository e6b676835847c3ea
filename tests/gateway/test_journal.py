"""The journal: what a client gets for what replicas say, undisturbed and across a break.

Streams and whole answers are vLLM's own, recorded.
"""

from typing import Any

import orjson
import pytest

from gateway.failure import ExchangeFailed
from gateway.journal import Journal
from gateway.leg import Leg
from gateway.legs import Target, first_leg, next_leg
from gateway.request import Request
from gateway.sse import EventSplitter
from tests.gateway.recorded import (
    CHAT_IDS,
    CHAT_PROMPT_IDS,
    CHAT_USAGE,
    CHAT_WHOLE,
    TEXT_IDS,
    TEXT_PROMPT_IDS,
    TEXT_USAGE,
    TEXT_WHOLE,
    Json,
    chat_chunk,
    chat_stream,
    chat_token,
    role,
    text_chunk,
    text_stream,
    text_token,
    usage_event,
)
from tests.gateway.requests import chat, text

BEST = Target("best", "m", max_model_len=2048)
SMALL = Target("small", "s", takes_token_ids=False)
USAGE = {"stream_options": {"include_usage": True}}


class Client:
    """A journal and what its client has got."""

    def __init__(self, request: Request, target: Target = BEST) -> None:
        self.journal = Journal(request)
        self.got: list[Json] = []
        self.begin(first_leg(request, target))

    def begin(self, leg: Leg) -> None:
        self.leg = leg
        self.journal.begin(leg)

    def go_on(self, target: Target = BEST, held: str | None = "") -> Leg:
        self.journal.rewind()
        self.begin(next_leg(self.journal, target, "best", held))
        return self.leg

    def take(self, *events: Json | bytes) -> list[Json]:
        out: list[bytes] = []
        for event in events:
            self.journal.take(event if isinstance(event, bytes) else orjson.dumps(event), out)
        return self._got(out)

    def _got(self, out: list[bytes]) -> list[Json]:
        new = [orjson.loads(payload) for payload in EventSplitter().feed(b"".join(out))]
        self.got += new
        return new

    def close(self) -> list[Json]:
        out: list[bytes] = []
        self.journal.close(out)
        return self._got(out)

    @property
    def said(self) -> str:
        return "".join(_text(c) for event in self.got for c in event["choices"])

    def whole(self) -> Json:
        found: Json = orjson.loads(self.journal.whole())
        return found


def _text(choice: Json) -> str:
    found: str | None = choice["delta"].get("content") if "delta" in choice else choice["text"]
    return found or ""


def without_nulls(value: Any) -> Any:
    """OpenAI's clients read a missing field and null alike."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


class TestWhole:
    """A request without `stream` is streamed inside; its answer is the one that vLLM gives in one piece."""

    @pytest.mark.parametrize("wants_ids", [True, False])
    def test_chat(self, wants_ids: bool) -> None:
        client = Client(chat(stream=False, return_token_ids=wants_ids))
        client.take(*chat_stream(), b"[DONE]")
        expected = {**CHAT_WHOLE, "id": "chatcmpl-1"}
        if not wants_ids:
            expected = {
                **expected,
                "prompt_token_ids": None,
                "choices": [{**expected["choices"][0], "token_ids": None}],
            }
        assert without_nulls(client.whole()) == without_nulls(expected)

    @pytest.mark.parametrize("wants_ids", [True, False])
    def test_text(self, wants_ids: bool) -> None:
        client = Client(text(stream=False, return_token_ids=wants_ids))
        client.take(*text_stream(), b"[DONE]")
        (choice,) = TEXT_WHOLE["choices"]
        if not wants_ids:
            choice = {**choice, "token_ids": None, "prompt_token_ids": None}
        expected = {**TEXT_WHOLE, "id": "cmpl-1", "choices": [choice]}
        assert without_nulls(client.whole()) == without_nulls(expected)

    def test_reasoning_is_gathered(self) -> None:
        client = Client(chat(stream=False))
        deltas = [{"reasoning": "be"}, {"reasoning": "cause"}, {"content": "so"}]
        client.take(role(), *(chat_chunk([{"index": 0, "delta": d, "finish_reason": None}]) for d in deltas))
        assert client.whole()["choices"][0]["message"] == {
            "role": "assistant",
            "content": "so",
            "reasoning": "because",
        }

    def test_after_a_break(self) -> None:
        client = Client(chat(stream=False))
        client.take(*chat_stream()[:3])
        client.go_on()
        client.take(
            text_token("!", [17], None, [1, 2], id_="cmpl-2"),
            text_token(" I", [339], "length", id_="cmpl-2"),
            usage_event(
                {"prompt_tokens": 35, "total_tokens": 37, "completion_tokens": 2}, text_chunk, "cmpl-2"
            ),
            b"[DONE]",
        )
        expected = {**CHAT_WHOLE, "id": "chatcmpl-1", "prompt_token_ids": None}
        expected["choices"] = [{**expected["choices"][0], "token_ids": None}]
        assert without_nulls(client.whole()) == without_nulls(expected)

    @pytest.mark.parametrize("wants_ids", [False, True])
    def test_what_comes_with_ids_that_only_the_gateway_asked_for_is_left_out(self, wants_ids: bool) -> None:
        client = Client(chat(stream=False, return_token_ids=wants_ids))
        client.take(*chat_stream(), b"[DONE]")
        assert ("prompt_text" in client.whole()) == wants_ids


class TestUndisturbed:
    def test_ids_that_only_the_gateway_asked_for_are_removed(self) -> None:
        client = Client(chat(**USAGE))
        client.take(*chat_stream(), b"[DONE]")
        assert (client.journal.ids, client.journal.prompt_ids) == (CHAT_IDS, CHAT_PROMPT_IDS)
        assert b"token_ids" not in orjson.dumps(client.got)
        expected = chat_stream()
        expected[0].pop("prompt_token_ids")
        expected[0].pop("prompt_text")
        for event in expected[1:-1]:
            event["choices"][0].pop("token_ids")
        assert client.got == expected

    @pytest.mark.parametrize(("make", "stream"), [(chat, chat_stream), (text, text_stream)])
    def test_ids_that_the_client_asked_for_pass(self, make: Any, stream: Any) -> None:
        client = Client(make(return_token_ids=True, **USAGE))
        client.take(*stream())
        assert client.got == stream()

    def test_bytes_pass_through_where_nothing_must_change(self) -> None:
        client = Client(chat(return_token_ids=True))
        odd = b'{ "choices" : [ {"delta":{"content":"\\u00e9"}, "new":1.50} ] , "id":"x" }'
        out: list[bytes] = []
        client.journal.take(odd, out)
        assert out == [b"data: " + odd + b"\n\n"]

    def test_start_up_frames_are_held_until_there_is_content(self) -> None:
        client = Client(chat())
        assert client.take(role()) == []
        assert client.take(chat_token("", [])) == []
        assert not client.journal.has_started
        assert len(client.take(chat_token("Hello", [19556]))) == 3
        assert len(client.take(chat_token("", []))) == 1

    def test_an_answer_whose_first_token_ends_it(self) -> None:
        # Recorded with `stop: " 4"`: text is held back, then the stop string is met.
        client = Client(text(stop=" 4", **USAGE))
        assert client.take(text_token("", [216], None, TEXT_PROMPT_IDS)) == []
        assert len(client.take(text_token("", [36], "stop", None, " 4"))) == 2
        usage = {"prompt_tokens": 8, "total_tokens": 10, "completion_tokens": 2}
        assert client.take(usage_event(usage, text_chunk))[0]["usage"] == usage
        assert not client.journal.is_empty
        assert client.said == ""

    def test_the_same_from_a_replica_without_ids(self) -> None:
        client = Client(chat(**USAGE), SMALL)
        assert client.take(role(None), chat_token("", None, "stop"), usage_event(CHAT_USAGE), b"[DONE]") == []
        assert not client.journal.is_empty
        out: list[bytes] = []
        client.journal.release_held(out)
        assert [e.get("usage") for e in client._got(out)] == [None, None, CHAT_USAGE]
        assert client.close() == []

    @pytest.mark.parametrize(
        "events",
        [
            [],
            [role()],
            [role(), chat_token("", None, "stop")],
            [role(), usage_event({**CHAT_USAGE, "completion_tokens": 0})],
        ],
    )
    def test_no_token_is_no_answer(self, events: list[Json]) -> None:
        client = Client(chat())
        assert client.take(*events, b"[DONE]") == []
        assert client.journal.is_empty

    def test_usage_that_only_the_gateway_asked_for_is_kept_to_itself(self) -> None:
        client = Client(chat(logprobs=True))
        assert client.leg.asked_usage
        client.take(role(None), chat_token("Hi", None, "stop"), usage_event(CHAT_USAGE), b"[DONE]")
        assert [len(e["choices"]) for e in client.got] == [1, 1]
        assert client.journal.usage == CHAT_USAGE

    def test_tokens_are_counted_by_events_where_a_replica_tells_no_ids(self) -> None:
        client = Client(chat(), SMALL)
        client.take(role(None), chat_token("a"), chat_token(""), chat_token("b"))
        assert client.journal.tokens == 2

    @pytest.mark.parametrize(
        ("delta", "odd"),
        [
            ({"tool_calls": [{"index": 0}]}, "tool_calls"),
            ({"reasoning": "hm"}, "reasoning"),
            ({"content": "x", "reasoning": None, "role": "assistant"}, ""),
        ],
    )
    def test_what_a_continuation_could_not_repeat(self, delta: Json, odd: str) -> None:
        client = Client(chat())
        client.take(chat_chunk([{"index": 0, "delta": delta, "finish_reason": None}]))
        assert client.journal.odd == odd
        assert client.journal.has_started


class TestMalformed:
    @pytest.mark.parametrize(
        ("payload", "failure"),
        [
            (b"", "malformed"),
            (b"{", "malformed"),
            (b"[]", "malformed"),
            (b"7", "malformed"),
            (b"{}", "malformed"),
            (b'{"choices": 5}', "malformed"),
            (b'{"choices": [5]}', "malformed"),
            (b'{"choices": [{"delta": 5}]}', "malformed"),
            (b'{"choices": [{"delta": {"content": 5}}]}', "malformed"),
            (b'{"choices": [{"delta": {"content": "x"}, "token_ids": 5}]}', "malformed"),
            (b'{"choices": [{"text": ["x"]}]}', "malformed"),
            (b'{"error": {"message": "CUDA"}}', "error_event"),
            (b'{"error": "CUDA", "choices": []}', "error_event"),
        ],
    )
    def test_an_event_that_is_none(self, payload: bytes, failure: str) -> None:
        client = Client(chat())
        client.take(*chat_stream()[:2])
        with pytest.raises(ExchangeFailed) as caught:
            client.take(payload)
        assert caught.value.failure == failure
        assert client.said == "Hello"

    def test_an_error_of_null_is_none(self) -> None:
        client = Client(chat())
        assert client.take({**chat_token("Hi", [1]), "error": None})


class TestContinued:
    """The stream breaks, another replica goes on, and the client sees one answer."""

    def broken(self, request: Request | None = None) -> Client:
        client = Client(request or chat(max_tokens=4, **USAGE))
        client.take(*chat_stream()[:3])
        return client

    def test_a_chat_goes_on_as_token_ids(self) -> None:
        client = self.broken()
        client.go_on()
        new = client.take(
            text_token("!", [17], None, [*CHAT_PROMPT_IDS, 19556, 665], id_="cmpl-2"),
            text_token(" I", [339], "length", id_="cmpl-2"),
            usage_event(
                {"prompt_tokens": 35, "total_tokens": 37, "completion_tokens": 2}, text_chunk, "cmpl-2"
            ),
            b"[DONE]",
        )
        # The shape, id and time of the first leg; no ids; usage counted once.
        assert {(e["id"], e["created"], e["object"]) for e in client.got} == {
            ("chatcmpl-1", 1795967399, "chat.completion.chunk")
        }
        assert [c["delta"] for e in new for c in e["choices"]] == [{"content": "!"}, {"content": " I"}]
        assert new[1]["choices"][0]["finish_reason"] == "length"
        assert b"token_ids" not in orjson.dumps(client.got)
        assert b'"text"' not in orjson.dumps(client.got)
        assert new[2]["usage"] == CHAT_USAGE
        assert client.said == "Hello there! I"
        assert client.journal.ids == CHAT_IDS
        assert client.journal.prompt_ids == CHAT_PROMPT_IDS
        assert client.close() == []

    def test_a_chat_goes_on_as_text(self) -> None:
        client = self.broken(chat(**USAGE))
        client.go_on(Target("best", "m"))
        new = client.take(
            role([1, 2], "chatcmpl-2"),
            chat_token("!", [17], None, "chatcmpl-2"),
            chat_token(" I", [339], "length", "chatcmpl-2"),
            usage_event({"prompt_tokens": 35, "total_tokens": 37, "completion_tokens": 2}),
        )
        # The second role event says nothing new.
        assert [c["delta"] for e in new for c in e["choices"]] == [{"content": "!"}, {"content": " I"}]
        assert new[-1]["usage"] == CHAT_USAGE
        assert {e["id"] for e in client.got} == {"chatcmpl-1"}
        assert client.journal.ids == CHAT_IDS

    def test_a_text_goes_on(self) -> None:
        client = Client(text(max_tokens=4, **USAGE))
        client.take(*text_stream()[:2])
        client.go_on()
        new = client.take(
            text_token(",", [28], None, [*TEXT_PROMPT_IDS, 216, 36], id_="cmpl-2"),
            text_token(" ", [216], "length", id_="cmpl-2"),
            usage_event(
                {"prompt_tokens": 10, "total_tokens": 12, "completion_tokens": 2}, text_chunk, "cmpl-2"
            ),
        )
        assert {(e["id"], e["object"]) for e in client.got} == {("cmpl-1", "text_completion")}
        assert (client.said, client.journal.ids) == (" 4, ", TEXT_IDS)
        assert (client.journal.prompt_ids, new[-1]["usage"]) == (TEXT_PROMPT_IDS, TEXT_USAGE)

    def test_ids_that_the_client_asked_for_are_all_there(self) -> None:
        client = self.broken(chat(max_tokens=4, return_token_ids=True))
        client.go_on()
        client.take(text_token("!", [17], None, [1, 2], id_="cmpl-2"), text_token(" I", [339], "length"))
        assert [i for e in client.got for c in e["choices"] for i in c.get("token_ids") or []] == CHAT_IDS
        assert sum("prompt_token_ids" in orjson.dumps(e).decode() for e in client.got) == 1

    def test_two_breaks(self) -> None:
        client = self.broken()
        client.go_on()
        client.take(text_token("!", [17], None, [1], id_="cmpl-2"))
        leg = client.go_on()
        assert leg.body["prompt"] == [*CHAT_PROMPT_IDS, *CHAT_IDS[:3]]
        assert leg.body["max_tokens"] == 1
        new = client.take(
            text_token(" I", [339], "length", [1], id_="cmpl-3"),
            usage_event(
                {"prompt_tokens": 36, "total_tokens": 37, "completion_tokens": 1}, text_chunk, "cmpl-3"
            ),
        )
        assert new[-1]["usage"] == CHAT_USAGE
        assert client.said == "Hello there! I"

    def test_continuous_usage(self) -> None:
        client = Client(
            chat(max_tokens=4, stream_options={"include_usage": True, "continuous_usage_stats": True})
        )
        client.take(
            role(usage={"prompt_tokens": 33, "total_tokens": 33, "completion_tokens": 0}),
            chat_token(
                "Hello", [19556], usage={"prompt_tokens": 33, "total_tokens": 34, "completion_tokens": 1}
            ),
        )
        client.go_on()
        new = client.take(
            text_token(" there", [665], None, [1],
                       usage={"prompt_tokens": 34, "total_tokens": 35, "completion_tokens": 1}),
            text_token("!", [17], "stop", usage={"prompt_tokens": 34, "total_tokens": 36, "completion_tokens": 2}),
            usage_event({"prompt_tokens": 34, "total_tokens": 36, "completion_tokens": 2}, text_chunk),
        )  # fmt: skip
        assert [(e["usage"]["prompt_tokens"], e["usage"]["completion_tokens"], e["usage"]["total_tokens"])
                for e in new] == [(33, 2, 35), (33, 3, 36), (33, 3, 36)]  # fmt: skip

    def test_usage_of_a_replica_without_ids(self) -> None:
        client = Client(chat(**USAGE), Target("best", "m", takes_token_ids=False))
        client.take(role(None), chat_token("Hello"), chat_token(" there"))
        client.go_on(Target("best", "m", takes_token_ids=False))
        new = client.take(
            chat_token("!", finish="stop"),
            usage_event({"prompt_tokens": 35, "total_tokens": 36, "completion_tokens": 1}),
        )
        assert new[-1]["usage"] == {"prompt_tokens": 33, "total_tokens": 36, "completion_tokens": 3}

    def test_ids_with_a_gap_are_not_continued_from(self) -> None:
        """A leg without ids between two with: the whole is told as text, and counted whole."""
        client = self.broken(chat(max_tokens=9, **USAGE))
        client.go_on(Target("best", "m", takes_token_ids=False), held=None)
        client.take(chat_token("!"))
        leg = client.go_on()
        assert leg.body["messages"][-1] == {"role": "assistant", "content": "Hello there!"}
        assert leg.body["max_tokens"] == 6
        client.take(chat_token(" I", [339]))
        leg = client.go_on()
        assert leg.body["messages"][-1]["content"] == "Hello there! I"
        assert leg.body["max_tokens"] == 5
        assert client.journal.tokens == 4

    def test_half_of_a_character_is_generated_again(self) -> None:
        client = Client(chat(max_tokens=9))
        client.take(role(), chat_token("a", [1]), chat_token("", [2]))
        leg = client.go_on()
        assert leg.body["prompt"] == [*CHAT_PROMPT_IDS, 1]
        client.take(text_token("", [2], None, [7]), text_token("日", [3]))
        assert (client.said, client.journal.ids) == ("a日", [1, 2, 3])

    def test_frames_held_by_a_failed_first_leg_are_forgotten(self) -> None:
        client = Client(chat())
        client.take(role())
        client.journal = Journal(client.journal.request)
        client.begin(first_leg(client.journal.request, BEST))
        client.take(role(id_="chatcmpl-2"), chat_token("Hi", [1], id_="chatcmpl-2"))
        assert [e["id"] for e in client.got] == ["chatcmpl-2", "chatcmpl-2"]


class TestSplice:
    """Another tier goes on: as text, and marked."""

    def spliced(self) -> Client:
        client = Client(chat(max_tokens=8, **USAGE))
        client.take(*chat_stream()[:3])
        client.go_on(SMALL)
        return client

    def test_it_is_marked_and_names_what_served(self) -> None:
        client = self.spliced()
        assert client.leg.body["model"] == "s"
        assert client.leg.body["messages"][-1] == {"role": "assistant", "content": "Hello there"}
        new = client.take(
            {**role(None, "x"), "model": "s"},
            {**chat_token(", you", finish="stop", id_="x"), "model": "s"},
            {**usage_event({"prompt_tokens": 40, "total_tokens": 41, "completion_tokens": 1}), "model": "s"},
        )
        first, usage = new
        assert first["graceway"] == {"spliced": True, "after_tokens": 2}
        assert (first["model"], first["id"]) == ("s", "chatcmpl-1")
        assert usage["usage"] == {"prompt_tokens": 33, "completion_tokens": 3, "total_tokens": 36}
        assert client.said == "Hello there, you"

    def test_its_tokens_count(self) -> None:
        client = self.spliced()
        client.take(chat_token(","), chat_token(" you"))
        assert client.journal.tokens == 4

    def test_back_in_the_first_tier_what_the_other_said_is_not_lost(self) -> None:
        client = self.spliced()
        client.take(chat_token(","), chat_token(" you"))
        leg = client.go_on()
        assert leg.body["messages"][-1] == {"role": "assistant", "content": "Hello there, you"}
        assert (leg.body["max_tokens"], leg.is_splice) == (4, False)

    def test_another_tier_s_ids_are_not_ours(self) -> None:
        client = Client(chat(max_tokens=8, return_token_ids=True))
        client.take(*chat_stream()[:3])
        client.go_on(SMALL)
        client.take(chat_token(",", [5]), chat_token(" you", [6, 7]))
        assert (client.journal.ids, client.journal.tokens) == (CHAT_IDS[:2], 5)
        assert "messages" in client.go_on().body


class TestStopStrings:
    """vLLM holds text back that may become a stop string; at a seam the gateway finds what spans it."""

    def test_one_that_spans_the_seam(self) -> None:
        client = Client(text(stop=["4, 5"], max_tokens=9, **USAGE))
        client.take(text_token(" ", [216], None, TEXT_PROMPT_IDS), text_token("", [36]), text_token("", [28]))
        leg = client.go_on(held="4,")
        assert leg.body["prompt"] == [*TEXT_PROMPT_IDS, 216, 36, 28]
        new = client.take(text_token(" 5, 6", [216, 37, 28, 216, 38], None, [1]))
        assert client.said == " "
        (choice,) = new[-1]["choices"]
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("", "stop", "4, 5")
        assert leg.stop is not None
        assert leg.stop.hit == "4, 5"

    def test_what_was_held_and_is_none_comes_out(self) -> None:
        client = Client(text(stop=["4, 9"], max_tokens=9))
        client.take(text_token(" ", [216], None, TEXT_PROMPT_IDS), text_token("", [36]), text_token("", [28]))
        client.go_on(held="4,")
        client.take(text_token(" 5", [216, 37], None, [1]), text_token(", 6", [28, 216, 38], "length"))
        assert client.said == " 4, 5, 6"

    def test_what_is_held_at_the_end_comes_with_it(self) -> None:
        client = Client(chat(stop=["zz"], max_tokens=9))
        client.take(role(), chat_token("a", [1]))
        client.go_on()
        new = client.take(text_token("bz", [2], "length", [9]))
        assert (client.said, new[-1]["choices"][0]["finish_reason"]) == ("abz", "length")
        assert client.journal.said == "abz"

    def test_whole(self) -> None:
        client = Client(chat(stream=False, stop=["zz"], max_tokens=9))
        client.take(role(), chat_token("az", [1]))
        client.go_on()
        client.take(text_token("zb", [2], None, [9]))
        # The first half was said before the seam, as an engine that held nothing would.
        found = client.whole()
        assert found["choices"][0]["finish_reason"] == "stop"
        assert found["choices"][0]["message"]["content"] == "az"


class TestFinishLost:
    """All tokens came, and the replica died before it could say so."""

    def test_the_end_is_owed(self) -> None:
        client = Client(chat(max_tokens=2, **USAGE))
        client.take(role(), chat_token("Hello", [19556]), chat_token(" there", [665]))
        finish, usage = client.close()
        assert finish["choices"] == [
            {"index": 0, "logprobs": None, "finish_reason": "length", "delta": {"content": ""}}
        ]
        assert usage["usage"] == {"prompt_tokens": 33, "completion_tokens": 2, "total_tokens": 35}
        assert {(e["id"], e["model"], e["object"]) for e in client.got} == {
            ("chatcmpl-1", "m", "chat.completion.chunk")
        }

    def test_of_a_text(self) -> None:
        client = Client(text(max_tokens=1))
        client.take(text_token(" ", [216], None, TEXT_PROMPT_IDS))
        (finish,) = client.close()
        assert finish["choices"][0] == {"index": 0, "logprobs": None, "finish_reason": "length", "text": ""}

    def test_only_usage_is_owed(self) -> None:
        client = Client(chat(max_tokens=1, **USAGE))
        client.take(role(), chat_token("Hello", [19556], "stop"))
        (usage,) = client.close()
        assert usage["choices"] == []

    def test_nothing_is_owed_twice(self) -> None:
        client = Client(chat(**USAGE))
        client.take(*chat_stream())
        assert client.close() == []


def reasons(client: Client) -> list[tuple[int, str]]:
    found = [(c["index"], c["finish_reason"]) for event in client.got for c in event["choices"]]
    return [(index, reason) for index, reason in found if reason]


def of(index: int, content: str, finish: str | None = None) -> Json:
    choice = chat_token(content, None, finish)["choices"][0]
    return {**choice, "index": index}


class TestOneFinishReason:
    """A choice has one finish reason, in its last chunk; what a replica says of it later is not the answer."""

    @pytest.mark.parametrize(
        "later",
        [
            chat_token("", None, "stop"),
            chat_token("", None, "length"),
            chat_token(" more", [9], None),
            chat_token(" more", [9], "stop"),
            chat_chunk([{"index": [], "delta": {}, "finish_reason": "stop"}]),
        ],
    )
    @pytest.mark.parametrize("target", [BEST, SMALL], ids=["ids", "text"])
    def test_the_first_counts(self, target: Target, later: Json) -> None:
        client = Client(chat(), target)
        client.take(role(), chat_token("One", [1]), chat_token(" two", [2], "length"), later, b"[DONE]")
        assert reasons(client) == [(0, "length")]
        assert client.said == "One two"
        assert client.journal.finish_reason == "length"
        assert client.journal.tokens == 2

    def test_of_an_answer_in_one_piece(self) -> None:
        client = Client(chat(stream=False))
        client.take(role(), chat_token("One", [1], "stop"), chat_token("!", [2], "length"), b"[DONE]")
        (choice,) = client.whole()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("One", "stop")

    def test_usage_that_comes_with_the_second_one_is_told(self) -> None:
        client = Client(chat(**USAGE))
        again = chat_token("", None, "stop", usage=CHAT_USAGE)
        client.take(role(), chat_token("One", [1], "stop"), again, b"[DONE]")
        assert reasons(client) == [(0, "stop")]
        assert [event["usage"] for event in client.got if event.get("usage")] == [CHAT_USAGE]
        assert client.got[-1]["choices"] == []

    def test_each_choice_has_its_own(self) -> None:
        client = Client(chat(n=2))
        client.take(
            chat_chunk([of(0, "A"), of(1, "B")]),
            chat_chunk([of(0, "a", "stop")]),
            chat_chunk([of(0, "x", "length"), of(1, "b")]),
            chat_chunk([of(1, "", "length"), of(1, "y", "stop")]),
            b"[DONE]",
        )
        assert reasons(client) == [(0, "stop"), (1, "length")]
        assert client.said == "ABab"

    def test_one_that_nobody_was_told_does_not_end_the_next_attempt(self) -> None:
        client = Client(chat())
        client.take(role(), chat_token("", None, "stop"))
        assert client.got == []
        client.begin(first_leg(chat(), BEST))
        client.take(role(), chat_token("One", [1]), chat_token(" two", [2], "length"), b"[DONE]")
        assert (client.said, reasons(client)) == ("One two", [(0, "length")])
