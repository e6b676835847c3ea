"""What a request asks of the simulated engine, read from OpenAI's JSON as vLLM reads it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import orjson

from loadtests.decoding import Limits
from loadtests.tokens import MAX_ANSWER_TOKENS, VOCABULARY, Message, encode, render_chat

_COMMON = frozenset(
    {"model", "max_tokens", "min_tokens", "ignore_eos", "stop", "include_stop_str_in_output", "n", "stream"}
    | {"stream_options", "temperature", "top_p", "seed", "return_token_ids", "logprobs", "top_logprobs"}
)
_CHAT = _COMMON | {"messages", "max_completion_tokens", "continue_final_message", "add_generation_prompt"}
_COMPLETION = _COMMON | {"prompt"}
Body = Mapping[str, object]
MOST_CHOICES = 128
"""Of one request, as in OpenAI's API. Without a bound one request would stop the engine for good."""


class RefusedError(Exception):
    """A request that the engine does not serve, in OpenAI's terms."""

    def __init__(
        self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": status}}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for answers."""

    is_chat: bool
    model: str
    prompts: tuple[list[int], ...]
    limits: Limits
    choices: int
    is_stream: bool
    wants_usage: bool
    wants_running_usage: bool
    wants_ids: bool
    wants_logprobs: bool
    role: str
    unknown: dict[str, object]


def read_json(raw: bytes) -> dict[str, object]:
    """The body as an object; raises RefusedError."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RefusedError(400, f"1 validation error: json_invalid: {error}", "Bad Request") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "the body must be a JSON object", "Bad Request")
    return body


def read_chat(body: Body, model: str, max_model_len: int) -> Asked:
    """A chat completion; raises RefusedError."""
    return _read(body, model, (_chat_prompt(body),), max_model_len, is_chat=True)


def read_completion(body: Body, model: str, max_model_len: int) -> Asked:
    """A text completion; raises RefusedError."""
    return _read(body, model, _prompts(body.get("prompt")), max_model_len, is_chat=False)


def _read(
    body: Body, model: str, prompts: tuple[list[int], ...], max_model_len: int, *, is_chat: bool
) -> Asked:
    try:
        return _asked(body, model, prompts, max_model_len, is_chat=is_chat)
    except (AttributeError, TypeError) as error:
        # A field of another type than it should have.
        raise RefusedError(400, f"1 validation error: {error}", "Bad Request") from None


def _asked(
    body: Body, model: str, prompts: tuple[list[int], ...], max_model_len: int, *, is_chat: bool
) -> Asked:
    _check_model(body, model)
    options = cast(Body, body.get("stream_options") or {})
    wants_usage = bool(options.get("include_usage"))
    return Asked(
        is_chat=is_chat,
        model=model,
        prompts=prompts,
        limits=_limits(body, max(map(len, prompts)), max_model_len, is_chat),
        choices=_choices(body),
        is_stream=bool(body.get("stream")),
        wants_usage=wants_usage,
        wants_running_usage=wants_usage and bool(options.get("continuous_usage_stats")),
        wants_ids=bool(body.get("return_token_ids")),
        wants_logprobs=body.get("logprobs") not in (None, False),
        role=_role(body) if is_chat else "",
        unknown={name: body[name] for name in body.keys() - (_CHAT if is_chat else _COMPLETION)},
    )


def _choices(body: Body) -> int:
    asked = _whole(body, "n", 1)
    choices = 1 if asked is None else asked
    if not 1 <= choices <= MOST_CHOICES:
        raise RefusedError(400, f"n must be from 1 to {MOST_CHOICES}, got {choices}.", param="n")
    return choices


def _role(body: Body) -> str:
    """Whose turn the answer is: without a generation prompt it is the last message's."""
    if body.get("add_generation_prompt", True):
        return "assistant"
    return str(cast(list[Message], body["messages"])[-1]["role"])


def _check_model(body: Body, model: str) -> None:
    asked = body.get("model")
    if asked and asked != model:
        raise RefusedError(
            404, f"The model `{asked}` does not exist. Valid aliases: {model}.", "NotFoundError", "model"
        )


def _chat_prompt(body: Body) -> list[int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RefusedError(400, "messages: at least one message is required", "Bad Request", "messages")
    continues = bool(body.get("continue_final_message"))
    opens = bool(body.get("add_generation_prompt", True))
    if continues and opens:
        raise RefusedError(
            400, "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )
    try:
        return render_chat(messages, add_generation_prompt=opens, continue_final_message=continues)
    except (KeyError, TypeError) as error:
        raise RefusedError(400, f"messages: {error}", "Bad Request", "messages") from None


def _prompts(prompt: object) -> tuple[list[int], ...]:
    """Text, ids, or a list of either."""
    if isinstance(prompt, str):
        return (encode(prompt),)
    if not isinstance(prompt, list) or not prompt:
        raise RefusedError(400, "prompt: text or token ids are required", "Bad Request", "prompt")
    if all(isinstance(item, int) for item in prompt):
        return (_in_vocabulary(prompt),)
    return tuple(one for item in prompt for one in _prompts(item))


def _in_vocabulary(ids: list[int]) -> list[int]:
    if min(ids) < 0 or max(ids) >= len(VOCABULARY):
        raise RefusedError(400, f"Token id {max(ids)} is out of vocabulary")
    return ids


def _limits(body: Body, prompt_tokens: int, max_model_len: int, is_chat: bool) -> Limits:
    room = max_model_len - prompt_tokens
    asked = _whole(body, "max_completion_tokens", None) if is_chat else None
    max_tokens = asked if asked is not None else _whole(body, "max_tokens", None if is_chat else 16)
    if room < 1 or (max_tokens or 0) > room:
        raise RefusedError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{max_tokens or 0} output tokens and your prompt contains {prompt_tokens} input tokens.",
            param="input_tokens",
        )
    if max_tokens is not None and max_tokens < 1:
        raise RefusedError(400, f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
    stop = body.get("stop") or ()
    return Limits(
        max_tokens=min(room, MAX_ANSWER_TOKENS) if max_tokens is None else max_tokens,
        min_tokens=_whole(body, "min_tokens", 0) or 0,
        ignore_eos=bool(body.get("ignore_eos")),
        stop=(stop,) if isinstance(stop, str) else tuple(str(item) for item in cast(list[str], stop)),
        include_stop=bool(body.get("include_stop_str_in_output")),
    )


def _whole(body: Body, name: str, default: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        raise RefusedError(400, f"{name}: Input should be a valid integer", "Bad Request", name)
    return value
