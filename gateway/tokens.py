"""How many tokens a prompt is to a tier: by its model's own tokenizer, by its server's, or by an estimate.

The estimate errs on the long side, so that a prompt which it lets pass fits: no tokenizer in use makes more tokens than
bytes of a text, and letters are seldom alone in one.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.failure import ExchangeFailed
from gateway.http_client import request_bytes
from gateway.replica import Replica
from replicas.model_tokens import CannotCount, ModelTokens

Json = Mapping[str, Any]
SERVER_TIMEOUT_S = 0.3
MAX_ANSWER_BYTES = 16 << 20
MESSAGE_TOKENS = 8
"""That a chat template puts around one message, at most."""
TEMPLATE_TOKENS = 64
"""That it puts around all: the instructions that some models get where the caller gives none."""
LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


class TierTokens:
    """Counts for one tier. `model` is the folder of its tokenizer, where that is known."""

    def __init__(self, model: ModelTokens | None) -> None:
        self._model = model if model is not None and model.is_there else None

    async def count(self, body: Json, replica: Replica) -> int:
        """Tokens of a request's prompt, off the event loop."""
        if self._model is not None:
            try:
                return await asyncio.to_thread(self._model.count, body)
            except CannotCount:
                pass
        counted = await server_count(body, replica)
        return estimate(body) if counted is None else counted


def most_tokens(size_bytes: int, messages: int) -> int:
    """What a prompt of that size can be at most, whatever the tokenizer."""
    return size_bytes + MESSAGE_TOKENS * messages + TEMPLATE_TOKENS


def estimate(body: Json) -> int:
    """Tokens of a prompt, rather too many: half a token a letter, one for each other byte."""
    messages = body.get("messages") or ()
    if prompt := body.get("prompt") or body.get("input"):
        if isinstance(prompt, list) and all(isinstance(t, int) for t in prompt):
            return len(prompt)
        return _text_tokens(prompt)
    tools = _text_tokens(body["tools"]) if body.get("tools") else 0
    said = sum(_text_tokens({k: v for k, v in m.items() if k != "role"}) for m in messages)
    return said + tools + MESSAGE_TOKENS * len(messages) + TEMPLATE_TOKENS


def _text_tokens(value: Any) -> int:
    raw = value.encode("utf-8", "replace") if isinstance(value, str) else orjson.dumps(value)
    others = len(raw.translate(None, LETTERS))
    return others + (len(raw) - others + 1) // 2


async def count_of(text: str, replica: Replica) -> int | None:
    """Tokens of a text by itself, as the replica's own `/tokenize` says; None from one that can't tell, or not in time."""
    plain = {"prompt": text, "content": text, "add_special_tokens": False, "add_special": False}
    try:
        async with asyncio.timeout(SERVER_TIMEOUT_S):
            told = await _ask(replica, "/tokenize", {"model": replica.place.served_model, **plain})
            return len(told["tokens"])
    except (ExchangeFailed, TimeoutError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


async def server_count(body: Json, replica: Replica) -> int | None:
    """What the replica's own `/tokenize` says: vLLM's, or llama.cpp's; None from one that can't tell, or not in time."""
    try:
        async with asyncio.timeout(SERVER_TIMEOUT_S):
            told = await _ask(replica, "/tokenize", _tokenize_body(body, replica))
            if isinstance(told.get("count"), int):
                return int(told["count"])
            if "messages" not in body:
                return len(told["tokens"])
            # llama.cpp knows no messages there: they have to be put in order first.
            rendered = await _ask(
                replica, "/apply-template", {k: body[k] for k in ("messages", "tools") if k in body}
            )
            plain = {"content": rendered["prompt"], "add_special": True, "parse_special": True}
            return len((await _ask(replica, "/tokenize", plain))["tokens"])
    except (ExchangeFailed, TimeoutError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _tokenize_body(body: Json, replica: Replica) -> dict[str, Any]:
    about: dict[str, Any] = {"model": replica.place.served_model}
    if "messages" not in body:
        return {**about, "prompt": body.get("prompt"), "content": body.get("prompt"), "add_special": True}
    fields = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message")
    return {**about, **{name: body[name] for name in fields if body.get(name) is not None}}


async def _ask(replica: Replica, path: str, body: dict[str, Any]) -> dict[str, Any]:
    key = replica.place.api_key
    headers = {"authorization": f"Bearer {key}"} if key else {}
    connection = await replica.pool.connect(SERVER_TIMEOUT_S)
    try:
        connection.send(request_bytes(replica.origin, path, orjson.dumps(body), headers))
        status = await connection.head()
        raw = await connection.read_all(MAX_ANSWER_BYTES)
    finally:
        connection.finish()
    answer = orjson.loads(raw) if status == 200 else None
    if not isinstance(answer, dict):
        raise ExchangeFailed.of_status(status, "no answer of a tokenizer")
    return answer
