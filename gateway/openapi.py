"""The OpenAPI document: FastAPI's, of the routes that it serves, with the hot routes beside and how each says no."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gateway.request import PATHS, Kind

Json = dict[str, Any]
_ERROR = {"$ref": "#/components/schemas/Error"}
_SAYS_NO: dict[str, str] = {
    "400": "The request can't be understood",
    "401": "A valid API key is needed",
    "403": "Not for this caller",
    "404": "There is no such model or path",
    "405": "The path takes other methods",
    "408": "The request did not arrive in time",
    "413": "The body is too large",
    "414": "The URL is too long",
    "422": "A replica found the request wrong",
    "429": "Capacity exists, but is contended; `x-shed-reason` says why",
    "431": "The headers are too large",
    "503": "Nothing that the caller accepts can serve; `x-shed-reason` says why",
}
_SCHEMAS: Json = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "integer", "null"]},
                },
            }
        },
    },
    "Completion": {
        "type": "object",
        "required": ["object", "model", "choices"],
        "properties": {
            "id": {"type": "string"},
            "object": {"type": "string"},
            "model": {"type": "string"},
            "choices": {"type": "array", "items": {"type": "object"}},
            "usage": {"type": ["object", "null"]},
        },
    },
    "Embeddings": {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": {"type": "string"}, "data": {"type": "array", "items": {"type": "object"}}},
    },
    "Pin": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "model": {"type": ["string", "null"]},
            "tier": {"type": ["string", "null"]},
            "share": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
            "for_s": {"type": "number", "exclusiveMinimum": 0},
        },
    },
    "Preemption": {
        "type": "object",
        "additionalProperties": False,
        "description": "Which managed replica will be taken away, or all on which host, and when.",
        "properties": {
            "replica": {"type": ["string", "null"]},
            "host": {"type": ["string", "null"]},
            "grace_s": {"type": "number", "exclusiveMinimum": 0, "maximum": 86400},
        },
    },
}
_COMMON: Json = {
    "stream": {"type": ["boolean", "null"]},
    "max_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 64},
    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2},
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 4},
    "stop": {"type": ["string", "array", "null"], "items": {"type": "string"}},
    "seed": {"type": ["integer", "null"]},
    "user": {"type": ["string", "null"]},
    "stream_options": {"type": ["object", "null"], "properties": {"include_usage": {"type": "boolean"}}},
}
_MESSAGE: Json = {
    "type": "object",
    "properties": {"role": {"type": "string"}, "content": {"type": ["string", "array", "null"]}},
}
_BODIES: dict[Kind, Json] = {
    "chat": {
        "type": "object",
        "required": ["model", "messages"],
        "properties": {**_COMMON, "messages": {"type": "array", "minItems": 1, "items": _MESSAGE}},
    },
    "text": {
        "type": "object",
        "required": ["model", "prompt"],
        "properties": {**_COMMON, "prompt": {"type": ["string", "array"], "items": {"type": "string"}}},
    },
    "embedding": {
        "type": "object",
        "required": ["model", "input"],
        "properties": {
            "input": {
                "type": ["string", "array"],
                "minLength": 1,
                "minItems": 1,
                "items": {"type": "string"},
            },
        },
    },
}
_SUMMARIES: dict[Kind, str] = {
    "chat": "A chat completion", "text": "A text completion", "embedding": "Embeddings, where a tier can",
}  # fmt: skip
_HEADERS: Json = {
    "x-session-id": {"type": "string"},
    "x-priority": {"type": "string", "enum": ["critical", "standard", "sheddable"]},
    "x-request-timeout-seconds": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e6},
    "x-degradation": {"anyOf": [{"enum": ["allow", "never"]}, {"type": "string"}]},
    "x-request-id": {"type": "string"},
    "traceparent": {"type": "string"},
}


def document(app: FastAPI, models: Sequence[str]) -> Json:
    """The whole document, of a gateway with these models."""
    found: Json = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path in found["paths"].values():
        for operation in path.values():
            _say_no(operation)
    found["paths"] |= {path: {"post": _asked(kind, models)} for kind, path in PATHS.items()}
    for path, schema in (("/admin/pin", "Pin"), ("/admin/preempt", "Preemption")):
        body = _json({"$ref": f"#/components/schemas/{schema}"}, required=True)
        found["paths"][path]["post"]["requestBody"] = body
    found.setdefault("components", {}).setdefault("schemas", {}).update(_SCHEMAS)
    return found


def _asked(kind: Kind, models: Sequence[str]) -> Json:
    schema = "Embeddings" if kind == "embedding" else "Completion"
    answer = _json({"$ref": f"#/components/schemas/{schema}"}, description="The answer, whole or as it comes")
    if kind != "embedding":
        event = {"type": "object", "properties": {"data": {"type": "string"}}}
        answer["content"]["text/event-stream"] = {"schema": event}
    operation: Json = {
        "summary": _SUMMARIES[kind],
        "operationId": kind,
        "description": "OpenAI's. Fields that stand nowhere here go through to the replica.",
        "parameters": [{"name": n, "in": "header", "schema": s} for n, s in _HEADERS.items()],
        "requestBody": _json(_body(kind, models), required=True),
        "responses": {"200": answer},
    }
    _say_no(operation)
    return operation


def _body(kind: Kind, models: Sequence[str]) -> Json:
    body = _BODIES[kind]
    return {**body, "properties": {**body["properties"], "model": {"type": "string", "enum": list(models)}}}


def _say_no(operation: Json) -> None:
    """Every operation refuses in the same form, in place of FastAPI's own for what it validates."""
    responses = operation["responses"]
    for status, why in _SAYS_NO.items():
        if status not in responses or status == "422":
            responses[status] = _json(_ERROR, description=why)


def _json(schema: Json, **more: Any) -> Json:
    return {"content": {"application/json": {"schema": schema}}, **more}
