"""What vLLM 0.32 gave for SmolLM2-135M, greedy, four tokens: as streams the way the gateway asks for them, and whole."""

from typing import Any

Json = dict[str, Any]

HEAD = {"created": 1795967399, "model": "m"}
FINGERPRINT = "vllm-0.32.0-9f5cee7a"
CHAT_PROMPT_IDS = [
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198,
    1, 4093, 198, 36218, 15876, 30, 2, 198, 1, 520, 9531, 198,
]  # fmt: skip
CHAT_IDS = [19556, 665, 17, 339]
CHAT_TEXTS = ["Hello", " there", "!", " I"]
CHAT_USAGE = {"prompt_tokens": 33, "total_tokens": 37, "completion_tokens": 4}

TEXT_PROMPT_IDS = [33, 28, 216, 34, 28, 216, 35, 28]
TEXT_IDS = [216, 36, 28, 216]
TEXT_TEXTS = [" ", "4", ",", " "]
TEXT_USAGE = {"prompt_tokens": 8, "total_tokens": 12, "completion_tokens": 4}

CHAT_WHOLE: Json = {
    "id": "chatcmpl-9339d44d2e7dbad3", "object": "chat.completion", **HEAD,
    "choices": [{
        "index": 0,
        "message": {"role": "assistant", "content": "Hello there! I", "refusal": None, "annotations": None,
                    "audio": None, "function_call": None, "reasoning": None},
        "logprobs": None, "finish_reason": "length", "stop_reason": None, "token_ids": CHAT_IDS,
        "routed_experts": None,
    }],
    "service_tier": None, "system_fingerprint": FINGERPRINT,
    "usage": {**CHAT_USAGE, "prompt_tokens_details": None, "completion_tokens_details": None},
    "prompt_logprobs": None, "prompt_token_ids": CHAT_PROMPT_IDS, "prompt_text": None, "kv_transfer_params": None,
    "ec_transfer_params": None, "metrics": None,
}  # fmt: skip
TEXT_WHOLE: Json = {
    "id": "cmpl-be3c43981943722f", "object": "text_completion", **HEAD,
    "choices": [{
        "index": 0, "text": " 4, ", "logprobs": None, "finish_reason": "length", "stop_reason": None,
        "token_ids": TEXT_IDS, "prompt_logprobs": None, "prompt_token_ids": TEXT_PROMPT_IDS, "routed_experts": None,
    }],
    "service_tier": None, "system_fingerprint": FINGERPRINT,
    "usage": {**TEXT_USAGE, "prompt_tokens_details": None, "completion_tokens_details": None},
    "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None,
}  # fmt: skip


def chat_chunk(choices: list[Json], id_: str = "chatcmpl-1", **more: Any) -> Json:
    return {"id": id_, "object": "chat.completion.chunk", **HEAD, "choices": choices, **more}


def text_chunk(choices: list[Json], id_: str = "cmpl-1", **more: Any) -> Json:
    return {"id": id_, "object": "text_completion", **HEAD, "choices": choices, **more}


def role(ids: list[int] | None = CHAT_PROMPT_IDS, id_: str = "chatcmpl-1", **more: Any) -> Json:
    choice = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    return chat_chunk([choice], id_, prompt_token_ids=ids, prompt_text=None, **more)


def chat_token(
    content: str,
    ids: list[int] | None = None,
    finish: str | None = None,
    id_: str = "chatcmpl-1",
    **more: Any,
) -> Json:
    choice: Json = {"index": 0, "delta": {"content": content}, "logprobs": None, "finish_reason": finish}
    if finish:
        choice["stop_reason"] = None
    return chat_chunk([{**choice, "token_ids": ids}], id_, **more)


def text_token(
    text: str,
    ids: list[int] | None = None,
    finish: str | None = None,
    prompt_ids: list[int] | None = None,
    stop_reason: str | None = None,
    id_: str = "cmpl-1",
    **more: Any,
) -> Json:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": stop_reason,
              "prompt_token_ids": prompt_ids, "token_ids": ids}  # fmt: skip
    return text_chunk([choice], id_, **more)


def usage_event(usage: Json, make: Any = chat_chunk, id_: str = "chatcmpl-1") -> Json:
    found: Json = make([], id_, usage=usage, system_fingerprint=FINGERPRINT)
    return found


def chat_stream() -> list[Json]:
    """With `return_token_ids` and `include_usage`."""
    tokens = [
        chat_token(t, [i], "length" if n == 3 else None)
        for n, (t, i) in enumerate(zip(CHAT_TEXTS, CHAT_IDS, strict=True))
    ]
    return [role(), *tokens, usage_event(CHAT_USAGE)]


def text_stream() -> list[Json]:
    tokens = [
        text_token(t, [i], "length" if n == 3 else None, None if n else TEXT_PROMPT_IDS)
        for n, (t, i) in enumerate(zip(TEXT_TEXTS, TEXT_IDS, strict=True))
    ]
    return [*tokens, usage_event(TEXT_USAGE, text_chunk, "cmpl-1")]
