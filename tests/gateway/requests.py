"""Requests as literals."""

from typing import Any

import orjson

from gateway.request import Kind, Request, parse_request

MESSAGES = [{"role": "user", "content": "Say hi."}]


def chat(stream: bool = True, headers: dict[str, str] | None = None, **fields: Any) -> Request:
    return request("chat", {"messages": MESSAGES, "stream": stream, **fields}, headers)


def text(stream: bool = True, headers: dict[str, str] | None = None, **fields: Any) -> Request:
    return request("text", {"prompt": "1, 2, 3,", "stream": stream, **fields}, headers)


def request(kind: Kind, fields: dict[str, Any], headers: dict[str, str] | None = None) -> Request:
    return parse_request(kind, orjson.dumps({"model": "chat", **fields}), headers or {})
