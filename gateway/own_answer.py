"""Answers of the gateway itself, in the shapes of OpenAI's API."""

import asyncio
from time import time
from typing import Any

import orjson

from fallback_models.answer import Answer, Asked
from gateway.course import Course
from gateway.request import Request
from gateway.sse import DONE_FRAME, frame

Json = dict[str, Any]


def asked_of(course: Course) -> Asked:
    """A request as a tier without replicas sees it."""
    request, now = course.request, asyncio.get_running_loop().time()
    return Asked(
        request.model,
        request.kind,
        request.body,
        request.tenant,
        request.headers.get("accept-language", ""),
        max(0.001, course.facts.deadline - now),
    )


def whole_of(request: Request, answer: Answer) -> bytes:
    """The answer in one piece."""
    choice: Json = {"index": 0, "logprobs": None, "finish_reason": answer.finish_reason}
    if request.kind == "chat":
        choice["message"] = {"role": "assistant", "content": answer.text}
    else:
        choice["text"] = answer.text
    name = "chat.completion" if request.kind == "chat" else "text_completion"
    return orjson.dumps({**_head(request, answer, name), "choices": [choice], "usage": _usage(answer)})


def frames_of(request: Request, answer: Answer) -> bytes:
    """The answer as a stream of one content event."""
    if request.kind == "chat":
        name = "chat.completion.chunk"
        parts: list[Json] = [
            {"delta": {"role": "assistant", "content": ""}},
            {"delta": {"content": answer.text}},
        ]
        end: Json = {"delta": {}}
    else:
        name, parts, end = "text_completion", [{"text": answer.text}], {"text": ""}
    choices = [{"index": 0, **p, "logprobs": None, "finish_reason": None} for p in parts]
    choices.append({"index": 0, **end, "logprobs": None, "finish_reason": answer.finish_reason})
    head = _head(request, answer, name)
    events: list[Json] = [{**head, "choices": [choice]} for choice in choices]
    if request.wants_usage:
        events.append({**head, "choices": [], "usage": _usage(answer)})
    return b"".join(frame(orjson.dumps(event)) for event in events) + DONE_FRAME


def _head(request: Request, answer: Answer, name: str) -> Json:
    prefix = "chatcmpl" if request.kind == "chat" else "cmpl"
    return {
        "id": f"{prefix}-{request.request_id}",
        "object": name,
        "created": int(time()),
        "model": answer.model,
    }


def _usage(answer: Answer) -> Json:
    total = answer.prompt_tokens + answer.completion_tokens
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": total,
    }
