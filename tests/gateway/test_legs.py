"""Requests to replicas: the client's own, and those that go on with a broken answer."""

from typing import Any

import pytest

from gateway.journal import Journal
from gateway.legs import (
    CannotContinue,
    Target,
    first_leg,
    is_streamed_inside,
    next_leg,
    shows_first_token,
)
from gateway.request import Request
from tests.gateway.requests import MESSAGES, chat, text

BEST = Target("best", "m", max_model_len=100)
NO_IDS = Target("best", "m", takes_token_ids=False)
SMALL = Target("small", "s")
PROMPT_IDS, IDS = [7, 8, 9], [1, 2]
USAGE = {"include_usage": True}


def journal(request: Request, said: str = "ab", ids: list[int] | None = None) -> Journal:
    """Two tokens were said."""
    ids = IDS if ids is None else ids
    return Journal(
        request, prompt_ids=PROMPT_IDS if ids else [], ids=list(ids), text=[said], safe_ids=len(ids),
        unlisted=0 if ids else 2, has_started=True,
    )  # fmt: skip


def body(request: Request, target: Target = BEST, held: str | None = "", **more: Any) -> dict[str, Any]:
    return next_leg(journal(request, **more), target, "best", held).body


class TestFirst:
    def test_a_stream_is_the_client_s_own_with_ids_asked_for(self) -> None:
        request = chat(temperature=0, some_new_field=1)
        leg = first_leg(request, BEST)
        assert leg.path == "/v1/chat/completions"
        assert leg.body == {**request.body, "model": "m", "return_token_ids": True}
        assert (leg.asked_ids, leg.asked_usage, leg.is_continuation) == (True, False, False)

    def test_a_client_s_body_is_not_changed(self) -> None:
        request = chat(stream=False, stream_options={"continuous_usage_stats": True})
        before = dict(request.body)
        first_leg(request, BEST)
        assert request.body == before
        assert request.body["stream_options"] == {"continuous_usage_stats": True}

    def test_what_is_not_streamed_is_streamed_inside(self) -> None:
        leg = first_leg(text(stream=False), BEST)
        assert leg.path == "/v1/completions"
        assert (leg.body["stream"], leg.body["stream_options"], leg.asked_usage) == (True, USAGE, True)

    def test_ids_that_the_client_wants_are_the_client_s(self) -> None:
        leg = first_leg(chat(return_token_ids=True), BEST)
        assert (leg.body["return_token_ids"], leg.asked_ids) == (True, False)

    def test_a_replica_without_ids_is_asked_for_usage_instead(self) -> None:
        leg = first_leg(chat(), NO_IDS)
        assert "return_token_ids" not in leg.body
        assert (leg.body["stream_options"], leg.asked_usage) == (USAGE, True)

    def test_usage_that_the_client_wants_is_the_client_s(self) -> None:
        leg = first_leg(chat(stream_options=USAGE), NO_IDS)
        assert (leg.body["stream_options"], leg.asked_usage) == (USAGE, False)

    @pytest.mark.parametrize("options", ["x", 5, []])
    def test_options_of_the_wrong_type(self, options: Any) -> None:
        assert first_leg(chat(stream=False, stream_options=options), BEST).body["stream_options"] == USAGE

    def test_one_token_is_left_alone(self) -> None:
        whole = chat(stream=False, max_tokens=1)
        assert not is_streamed_inside(whole)
        assert shows_first_token(whole)
        assert first_leg(whole, BEST).body == {**whole.body, "model": "m"}
        assert is_streamed_inside(chat(max_tokens=1))
        assert is_streamed_inside(chat(stream=False, max_tokens=2))

    @pytest.mark.parametrize("fields", [{"n": 2}, {"tools": [{}]}, {"logprobs": True}])
    def test_what_can_t_be_continued_is_left_alone(self, fields: dict[str, Any]) -> None:
        whole = chat(stream=False, **fields)
        assert not is_streamed_inside(whole)
        assert first_leg(whole, BEST).body == {**whole.body, "model": "m"}
        streamed = chat(**fields)
        assert is_streamed_inside(streamed)
        assert "return_token_ids" not in first_leg(streamed, BEST).body


class TestByIds:
    def test_a_chat(self) -> None:
        request = chat(max_tokens=10, temperature=0, seed=3, chat_template="x", metadata={"a": 1}, user="u")
        leg = next_leg(journal(request), BEST, "best", "")
        assert leg.path == "/v1/completions"
        assert leg.body == {
            "model": "m", "prompt": [7, 8, 9, 1, 2], "max_tokens": 8, "stream": True, "temperature": 0, "seed": 3,
            "user": "u", "return_token_ids": True,
        }  # fmt: skip
        assert (leg.is_continuation, leg.is_splice, leg.asked_ids, leg.stop) == (True, False, True, None)

    def test_a_text(self) -> None:
        assert body(text(max_tokens=10))["prompt"] == [7, 8, 9, 1, 2]

    @pytest.mark.parametrize(
        ("request_", "limit"),
        [
            (chat(max_tokens=10), 8),
            (chat(max_completion_tokens=10), 8),
            (chat(max_completion_tokens=10, max_tokens=5), 8),
            (chat(max_completion_tokens=None, max_tokens=10), 8),
            (chat(max_tokens=3), 1),
            (chat(), 95),  # what is left of the model's window of 100
            (chat(max_tokens=-1), 95),
            (text(max_tokens=-1), 95),
            (chat(max_tokens="10"), 8),
            (text(), 14),  # OpenAI's and vLLM's default of 16
            (text(max_tokens=None), 14),
        ],
    )
    def test_max_tokens_are_counted_once(self, request_: Request, limit: int) -> None:
        found = body(request_)
        assert (found["max_tokens"], "max_completion_tokens" in found) == (limit, False)

    @pytest.mark.parametrize(("minimum", "left"), [(5, 3), (2, 0), (1, 0), (0, 0)])
    def test_min_tokens_are_counted_once(self, minimum: int, left: int) -> None:
        assert body(chat(max_tokens=10, min_tokens=minimum))["min_tokens"] == left

    def test_what_is_not_streamed_is_streamed_inside(self) -> None:
        found = body(chat(stream=False, max_tokens=10))
        assert (found["stream"], found["stream_options"]) == (True, USAGE)

    def test_a_cut_prompt_is_not_cut_again(self) -> None:
        assert "truncate_prompt_tokens" not in body(chat(max_tokens=10, truncate_prompt_tokens=3))

    def test_a_prompt_of_token_ids(self) -> None:
        assert body(text(prompt=PROMPT_IDS, max_tokens=10))["prompt"] == [7, 8, 9, 1, 2]


class TestByText:
    """In another tier, from a replica that told no ids, or where the window is not known."""

    @pytest.mark.parametrize(
        ("target", "ids", "held"), [(SMALL, None, ""), (NO_IDS, [], ""), (BEST, None, None)]
    )
    def test_a_chat(self, target: Target, ids: list[int] | None, held: str | None) -> None:
        request = chat(max_tokens=10)
        leg = next_leg(journal(request, ids=ids), target, "best", held)
        assert leg.path == "/v1/chat/completions"
        assert leg.body["messages"] == [*MESSAGES, {"role": "assistant", "content": "ab"}]
        assert (leg.body["add_generation_prompt"], leg.body["continue_final_message"]) == (False, True)
        assert (leg.body["model"], leg.body["max_tokens"]) == (target.served_model, 8)
        assert request.body["messages"] == MESSAGES

    def test_a_chat_whose_window_is_not_known(self) -> None:
        found = body(chat(), Target("best", "m"))
        assert found["messages"][-1] == {"role": "assistant", "content": "ab"}
        assert "max_tokens" not in found

    def test_the_limit_stays_in_the_field_that_the_client_used(self) -> None:
        found = body(chat(max_completion_tokens=10), SMALL)
        assert (found["max_completion_tokens"], "max_tokens" in found) == (8, False)

    def test_a_text(self) -> None:
        found = body(text(max_tokens=10), SMALL)
        assert (found["prompt"], found["max_tokens"]) == ("1, 2, 3,ab", 8)
        assert body(text(prompt=["x"], max_tokens=10), SMALL)["prompt"] == "xab"
        assert body(text(), SMALL)["max_tokens"] == 14

    def test_a_text_without_a_limit_from_a_replica_that_has_none(self) -> None:
        found = journal(text(), ids=[])
        found.unlisted = 17
        assert "max_tokens" not in next_leg(found, NO_IDS, "best", "").body
        assert body(text(max_tokens=-1), NO_IDS, ids=[])["max_tokens"] == -1

    def test_a_final_message_that_is_continued_already(self) -> None:
        messages = [*MESSAGES, {"role": "assistant", "content": "So: "}]
        found = body(chat(messages=messages, continue_final_message=True, max_tokens=10), SMALL)
        assert found["messages"] == [*MESSAGES, {"role": "assistant", "content": "So: ab"}]

    def test_another_tier_is_not_asked_for_ids(self) -> None:
        leg = next_leg(journal(chat(max_tokens=10)), SMALL, "best", "")
        assert (leg.is_splice, leg.asked_ids) == (True, False)

    def test_ids_behind_the_text_are_forgotten_as_they_come_again(self) -> None:
        found = journal(chat(max_tokens=10))
        found.ids.append(3)
        leg = next_leg(found, SMALL, "best", "")
        assert (found.ids, leg.body["max_tokens"]) == (IDS, 8)


class TestStops:
    def test_the_matcher_looks_back_at_what_was_said_and_holds_what_was_not(self) -> None:
        leg = next_leg(journal(chat(stop=["bcd"], max_tokens=10)), BEST, "best", "c")
        assert leg.stop is not None
        assert (leg.stop.feed("d"), leg.stop.hit) == ("", "bcd")
        assert leg.body["stop"] == ["bcd"]

    def test_included_where_the_client_says_so(self) -> None:
        request = chat(stop=["bcd"], include_stop_str_in_output=True, max_tokens=10)
        leg = next_leg(journal(request), BEST, "best", "c")
        assert leg.stop is not None
        assert (leg.stop.feed("de"), leg.stop.hit) == ("cd", "bcd")

    def test_as_text_nothing_is_held_for_it_comes_again(self) -> None:
        leg = next_leg(journal(chat(stop=["bcd"], max_tokens=10)), SMALL, "best", "c")
        assert leg.stop is not None
        assert (leg.stop.feed("cx"), leg.stop.hit) == ("cx", None)


REFUSED: list[tuple[Request, Target, dict[str, Any], str]] = [
    (chat(n=2), BEST, {}, "n can't"),
    (chat(tools=[{}]), BEST, {}, "tools"),
    (chat(response_format={"type": "json_object"}), BEST, {}, "response_format"),
    (text(prompt=["a", "b"]), BEST, {}, "several prompts"),
    (text(prompt=[5, 6], max_tokens=9), SMALL, {}, "token ids"),
    (text(prompt=[5, 6], max_tokens=9), NO_IDS, {"ids": []}, "token ids"),
    (chat(max_tokens=9, stop="x", min_tokens=5), BEST, {}, "do not count yet"),
    (chat(max_tokens=2), BEST, {}, "used up"),
    (text(), NO_IDS, {"ids": []}, "names no limit"),
    (chat(max_tokens=9, truncate_prompt_tokens=5), SMALL, {}, "cut"),
    (
        chat(
            max_tokens=9,
            continue_final_message=True,
            messages=[{"role": "assistant", "content": [{"text": "a"}]}],
        ),
        SMALL,
        {},
        "parts",
    ),
]


@pytest.mark.parametrize(("request_", "target", "more", "why"), REFUSED)
def test_refused_where_it_can_t_be_exact(
    request_: Request, target: Target, more: dict[str, Any], why: str
) -> None:
    with pytest.raises(CannotContinue, match=why):
        body(request_, target, **more)


def test_refused_after_what_can_t_be_repeated() -> None:
    found = journal(chat(max_tokens=9))
    found.odd = "tool_calls"
    with pytest.raises(CannotContinue, match="tool_calls"):
        next_leg(found, BEST, "best", "")
