"""Makes a conversation fit a tier's window by leaving out its oldest turns, and says how many those were."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson

from gateway.coverage import DEFAULT_TEXT_TOKENS, limit_length
from gateway.failure import ExchangeFailed
from gateway.policy.turns import Conversation
from gateway.replica import Replica
from gateway.request import Request
from gateway.specs import TierSpec
from gateway.tokens import TierTokens, most_tokens
from replicas.model_tokens import ModelTokens

Json = dict[str, Any]
LEAST_ANSWER_TOKENS = 16
"""An answer that has no more room than this is not worth a prompt that barely fits."""
GUESSES = 6
"""Counts for which the place is guessed; then the range is halved each time."""
ANSWER_SHARE = 0.25
"""Of the window, that an answer of unbounded length is left."""
ANSWER_SHARE_MOST = 0.5
"""Of the window, that is kept for an answer before turns are; a longer one is shortened."""


class TooLong(ExchangeFailed):
    """Even the last turn does not fit. `needed` and `window` are tokens, the shortest answer included."""

    def __init__(self, tier: str, needed: int, window: int) -> None:
        super().__init__("context", f"the last turn needs {needed} tokens, the window of {tier} has {window}")
        self.needed = needed


class ContextWindow:
    """The window of one tier. Its size is the config's, or what the replica tells; unknown, everything fits."""

    def __init__(self, spec: TierSpec) -> None:
        self._tier, self._tokens_most = spec.name, spec.max_model_len
        self._tokens = TierTokens(ModelTokens(spec.tokenizer) if spec.tokenizer else None)

    def size(self, replica: Replica) -> int | None:
        """In tokens, prompt and answer together."""
        return self._tokens_most or replica.max_model_len

    async def fit(self, request: Request, replica: Replica) -> tuple[Request, str]:
        """The request as it fits, and what was left out of it; empty for nothing.

        Raises:
            TooLong
        """
        window = self.size(replica)
        if window is None or _surely_fits(request, window):
            return request, ""

        async def count(body: Json) -> int:
            return await self._tokens.count(body, replica)

        return await _fit(request, window, count, self._tier)


def _surely_fits(request: Request, window: int) -> bool:
    body = request.body
    if body.get("tools") or body.get("chat_template_kwargs"):
        return False
    prompt = most_tokens(request.size_bytes, len(body.get("messages") or ()))
    return prompt + (request.max_tokens or LEAST_ANSWER_TOKENS) <= window


Count = Callable[[Json], Awaitable[int]]


async def _fit(request: Request, window: int, count: Count, tier: str) -> tuple[Request, str]:
    conversation = Conversation.of(request.body.get("messages") or ())

    def without(turns: int) -> Json:
        return {**request.body, "messages": conversation.without(turns)} if turns else request.body

    least = min(LEAST_ANSWER_TOKENS, request.max_tokens or LEAST_ANSWER_TOKENS)
    shortest = await count(without(conversation.removable))
    if shortest + least > window:
        raise TooLong(tier, shortest + least, window)
    room = max(shortest, window - _answer_tokens(request, window))
    turns, tokens = await _fewest_out(conversation, lambda turns: count(without(turns)), shortest, room)
    return _shortened(replace(request, body=without(turns)), turns, window - tokens)


async def _fewest_out(
    conversation: Conversation, count: Callable[[int], Awaitable[int]], shortest: int, room: int
) -> tuple[int, int]:
    """The fewest of the oldest turns that have to go, and how many tokens are left. `shortest` is what is left at most
    without all of them, and fits.

    Counting takes long for a long conversation, so a place is guessed by the length of the text and the tokens that the
    last count found in it: it takes few counts, and none of much more than fits.
    """
    sizes = conversation.sizes(lambda message: len(orjson.dumps(message)))
    none_fits, fits, tokens = -1, conversation.removable, shortest
    density, tries = shortest / max(1, sizes[-1]), 0
    while fits - none_fits > 1:
        tries += 1
        middle = (none_fits + fits) // 2
        if tries <= GUESSES:
            guess = next((n for n, size in enumerate(sizes) if size * density <= room), fits)
            middle = min(max(guess, none_fits + 1), fits - 1)
        counted = await count(middle)
        density = counted / max(1, sizes[middle])
        if counted > room:
            none_fits = middle
        else:
            fits, tokens = middle, counted
    return fits, tokens


def _answer_tokens(request: Request, window: int) -> int:
    """What is kept for the answer while turns are counted."""
    asked = request.max_tokens
    if asked is None:
        return DEFAULT_TEXT_TOKENS if request.leaves_its_length_open else int(ANSWER_SHARE * window)
    return min(asked, int(ANSWER_SHARE_MOST * window))


def _shortened(request: Request, turns: int, room: int) -> tuple[Request, str]:
    told = [f"context={turns} turn{'s' if turns > 1 else ''} out"] if turns else []
    asked = request.max_tokens
    if asked is not None and asked > room:
        body = dict(request.body)
        limit_length(body, room)
        if isinstance(body.get("min_tokens"), int):
            body["min_tokens"] = min(body["min_tokens"], room)
        request = replace(request, body=body)
        told.append(f"max_tokens={room}")
    return request, ", ".join(told)
