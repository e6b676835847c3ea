"""Requests to replicas: the first one, as the client wrote it, and the ones that go on with a broken answer."""

from dataclasses import dataclass
from typing import Any

from gateway.coverage import DEFAULT_TEXT_TOKENS, limit_length
from gateway.journal import Journal
from gateway.leg import Leg
from gateway.request import PATHS, Request
from gateway.stop import StopMatcher

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """What a leg must know of the replica it is for."""

    tier: str
    served_model: str
    takes_token_ids: bool = True
    """False once it has refused `return_token_ids`."""
    max_model_len: int | None = None
    continues: bool = True
    """Whether it goes on with an answer at all."""


class CannotContinue(Exception):  # noqa: N818
    """An exact continuation does not exist; the message says why."""


def shows_first_token(request: Request) -> bool:
    """Whether the gateway sees when an answer begins."""
    return request.stream or not request.inexact_because


def is_streamed_inside(request: Request) -> bool:
    """Whether the gateway reads a replica's answer token by token, so that it can go on elsewhere. Where the first token is
    the last, there is nothing to go on with."""
    return request.stream or (shows_first_token(request) and request.max_tokens != 1)


def first_leg(request: Request, target: Target) -> Leg:
    """The client's own request, for this replica's name of the model."""
    body = {**request.body, "model": target.served_model}
    leg = Leg(PATHS[request.kind], body)
    if not is_streamed_inside(request):
        return leg
    _ask_ids(leg, request, target)
    if not request.stream or not (leg.asked_ids or request.wants_token_ids or request.wants_usage):
        # Something must tell an answer whose first token ended it from a replica that generated nothing.
        _ask_usage(leg)
    return leg


def _ask_usage(leg: Leg) -> None:
    options = leg.body.get("stream_options")
    leg.body["stream"] = True
    leg.body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    leg.asked_usage = True


def _ask_ids(leg: Leg, request: Request, target: Target) -> None:
    if target.takes_token_ids and not request.inexact_because and not request.wants_token_ids:
        leg.body["return_token_ids"] = True
        leg.asked_ids = True


def next_leg(journal: Journal, target: Target, first_tier: str, held: str | None) -> Leg:
    """The request that goes on with the journal's answer: as token ids in the same tier, as text elsewhere.

    Args:
        held: text that the journal's ids stand for and that the client has not got, because it might have become a stop
            string; None when nobody knows it.

    Raises:
        CannotContinue: see the message.
    """
    if not target.continues:
        raise CannotContinue(f"the servers of {target.tier} go on with no answer")
    _check(journal)
    request, most, is_splice = journal.request, _most_tokens(journal), target.tier != first_tier
    limit = _limit(journal, target, most)
    if limit is not None and limit <= 0:
        raise CannotContinue("an answer that has used up its tokens can't be asked how it ended")
    if journal.has_all_ids and held is not None and limit is not None and not is_splice:
        leg = _from_ids(journal, target, limit)
    else:
        leg, held = _from_text(journal, target, most), ""
    leg.is_continuation, leg.is_splice = True, is_splice
    _trim(leg.body, request, journal)
    if request.stops:
        leg.stop = _matcher(request, journal, held or "")
    if not request.stream:
        _ask_usage(leg)
    if not is_splice:
        _ask_ids(leg, request, target)
    return leg


def _check(journal: Journal) -> None:
    request = journal.request
    if inexact := request.inexact_because or journal.odd:
        raise CannotContinue(f"an answer with {inexact} can't be continued exactly")
    if request.stops and _min_tokens(request) > journal.tokens:
        raise CannotContinue("an answer whose stop strings do not count yet can't be continued exactly")


def _most_tokens(journal: Journal) -> int | None:
    """How long the whole answer may be; None as far as the window goes.

    A text completion that does not say ends at 16 tokens with vLLM, which tells token ids, and nowhere with llama.cpp.
    """
    request = journal.request
    if not request.leaves_its_length_open:
        return request.max_tokens
    if journal.has_all_ids:
        return DEFAULT_TEXT_TOKENS
    if journal.tokens > DEFAULT_TEXT_TOKENS:
        return None
    raise CannotContinue("how long an answer is that names no limit is known to its replica alone")


def _limit(journal: Journal, target: Target, most: int | None) -> int | None:
    """Tokens that may still come; None where the window is not known."""
    if most is not None:
        return most - journal.tokens
    if target.max_model_len is None:
        return None
    return target.max_model_len - len(journal.prompt_ids) - journal.tokens


CHAT_ONLY = (
    "messages", "max_completion_tokens", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls",
    "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "documents",
    "add_special_tokens", "include_reasoning", "reasoning_effort", "store", "metadata", "modalities", "response_format",
)  # fmt: skip


def _from_ids(journal: Journal, target: Target, limit: int) -> Leg:
    body: Json = {k: v for k, v in journal.request.body.items() if k not in CHAT_ONLY}
    body["model"] = target.served_model
    body["prompt"] = journal.prompt_ids + journal.ids
    body.pop("truncate_prompt_tokens", None)
    body["max_tokens"] = limit
    return Leg(PATHS["text"], body)


def _from_text(journal: Journal, target: Target, most: int | None) -> Leg:
    request = journal.request
    if request.body.get("truncate_prompt_tokens") is not None:
        raise CannotContinue("a prompt that the replica cut can't be told without its token ids")
    journal.forget_untold_ids()
    body: Json = {**request.body, "model": target.served_model}
    if most is not None:
        limit_length(body, most - journal.tokens)
    if request.kind == "text":
        body["prompt"] = _text_prompt(request) + journal.said
    else:
        body["messages"] = _with_answer(request.body, journal.said)
        body["add_generation_prompt"], body["continue_final_message"] = False, True
    return Leg(PATHS[request.kind], body)


def _text_prompt(request: Request) -> str:
    prompt = request.body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise CannotContinue("a prompt of token ids whose replica told no ids of its answer")
    return prompt


def _with_answer(body: Json, said: str) -> list[Json]:
    messages: list[Json] = list(body["messages"])
    if body.get("continue_final_message"):
        if not isinstance(messages[-1].get("content"), str):
            raise CannotContinue("a message of parts can't be added to")
        return [*messages[:-1], {**messages[-1], "content": messages[-1]["content"] + said}]
    return [*messages, {"role": "assistant", "content": said}]


def _trim(body: Json, request: Request, journal: Journal) -> None:
    """Counts that began with the answer and must not begin again."""
    if minimum := _min_tokens(request):
        body["min_tokens"] = max(0, minimum - journal.tokens)
    body.pop("echo", None)


def _min_tokens(request: Request) -> int:
    minimum = request.body.get("min_tokens")
    return minimum if isinstance(minimum, int) else 0


def _matcher(request: Request, journal: Journal, held: str) -> StopMatcher:
    include = request.body.get("include_stop_str_in_output") is True
    matcher = StopMatcher(request.stops, journal.said, include)
    matcher.hold(held)
    return matcher
