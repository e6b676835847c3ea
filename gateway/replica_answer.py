"""What a replica says, read strictly: whatever the gateway goes by has the type it must have, or the exchange has failed."""

from typing import Any

import orjson

from gateway.failure import ExchangeFailed

Json = dict[str, Any]
GAVE_UP = frozenset({"abort", "error"})
"""Reasons to finish by which an engine says that it has not: OpenAI's API has none for that."""


def usage_of(answer: Json) -> Json:
    """Of an answer in one piece."""
    usage: Json = answer.get("usage") or {}
    if not answer["choices"] or usage.get("completion_tokens") == 0:
        raise ExchangeFailed("no_tokens", "the replica answered without generating anything")
    return usage


def message_of(choice: Json) -> Json:
    """What a choice of an answer in one piece says, of a chat or of a text completion."""
    said = choice.get("message", {"content": choice.get("text")})
    if not isinstance(said, dict) or not isinstance(said.get("content") or "", str):
        raise ExchangeFailed("malformed", "an answer that says nothing")
    return said


def usage_of_embeddings(body: bytes) -> Json:
    answer = _json_of(body)
    data, usage = answer.get("data"), answer.get("usage")
    if (
        not isinstance(data, list)
        or not data
        or not all(isinstance(d, dict) and d.get("embedding") for d in data)
    ):
        raise ExchangeFailed("malformed", "an answer without embeddings")
    return usage if isinstance(usage, dict) and _is_usage(usage) else {}


def event_of(payload: bytes) -> Json:
    event = _json_of(payload)
    if not _is_answer(event):
        raise ExchangeFailed("malformed", "an event that is no part of an answer")
    for choice in event["choices"]:
        if choice.get("finish_reason") in GAVE_UP:
            raise ExchangeFailed("error_event", f"the replica ended with {choice['finish_reason']!r}")
    return event


def _json_of(payload: bytes) -> Json:
    try:
        told = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise ExchangeFailed("malformed", f"an event that is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise ExchangeFailed("malformed", "an event that is no part of an answer")
    # A tuple of types, as mypyc looks at each of them itself; of a union it makes an object first.
    if isinstance(told.get("error"), (dict, str)):
        raise ExchangeFailed("error_event", str(told["error"])[:300])
    return told


def _is_answer(event: Json) -> bool:
    """Whether all that the journal goes by has the type it must have; what it only passes on may be anything."""
    choices, usage = event.get("choices"), event.get("usage")
    return (
        isinstance(choices, list)
        and all(_is_choice(choice) for choice in choices)
        and (usage is None or _is_usage(usage))
        and _are_ids(event.get("prompt_token_ids"))
        and isinstance(event.get("created") or 0, int)
    )


def _is_choice(choice: Any) -> bool:
    if not isinstance(choice, dict):
        return False
    delta = choice.get("delta")
    if delta is not None and not isinstance(delta, dict):
        return False
    text = choice.get("text") if delta is None else delta.get("content")
    reason = choice.get("finish_reason")
    return (
        (text is None or isinstance(text, str))
        and (reason is None or isinstance(reason, str))
        and _are_ids(choice.get("token_ids"))
        and _are_ids(choice.get("prompt_token_ids"))
    )


def _are_ids(ids: Any) -> bool:
    return ids is None or (isinstance(ids, list) and {int}.issuperset(map(type, ids)))


def _is_usage(usage: Any) -> bool:
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    return isinstance(usage, dict) and all(isinstance(usage.get(c) or 0, int) for c in counts)
