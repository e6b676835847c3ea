"""Refusals as clients see them."""

import orjson
import pytest

from gateway.errors import (
    BadRequest,
    ClientError,
    Forbidden,
    ModelNotFound,
    TooLarge,
    broken_json,
    error_json,
    rejection_json,
    shed_headers,
    shed_json,
    shed_status,
)
from gateway.policy.decision import Shed, ShedReason

MISTAKES: list[tuple[ClientError, int, dict[str, object]]] = [
    (BadRequest("no", "stop"), 400, {"message": "no", "type": "invalid_request_error", "param": "stop", "code": None}),
    (Forbidden("no"), 403, {"message": "no", "type": "permission_error", "param": None, "code": None}),
    (
        ModelNotFound("m"),
        404,
        {"message": "The model `m` does not exist.", "type": "invalid_request_error", "param": "model",
         "code": "model_not_found"},
    ),
    (
        TooLarge(9),
        413,
        {"message": "The request body is larger than 9 bytes.", "type": "invalid_request_error", "param": None,
         "code": None},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("error", "status", "body"), MISTAKES)
def test_the_caller_s_mistakes(error: ClientError, status: int, body: dict[str, object]) -> None:
    assert error.status == status
    assert orjson.loads(error.to_json()) == {"error": body}


@pytest.mark.parametrize(
    ("reason", "status", "type_"),
    [
        ("queue_full", 429, "rate_limit_error"),
        ("deadline", 429, "rate_limit_error"),
        ("rate_limited", 429, "rate_limit_error"),
        ("priority", 429, "rate_limit_error"),
        ("no_replica", 503, "service_unavailable_error"),
        ("no_tier", 503, "service_unavailable_error"),
    ],
)
def test_sheds(reason: ShedReason, status: int, type_: str) -> None:
    shed = Shed(reason, 1.0, "why")
    assert shed_status(shed) == status
    assert shed_headers(shed)["x-shed-reason"] == reason
    assert orjson.loads(shed_json(shed)) == {
        "error": {"message": "why", "type": type_, "param": None, "code": reason}
    }


@pytest.mark.parametrize(
    ("after_s", "header"), [(None, None), (0.1, "1"), (1.0, "1"), (1.6, "2"), (3.1, "4"), (60.0, "60")]
)
def test_retry_after_in_whole_seconds(after_s: float | None, header: str | None) -> None:
    assert shed_headers(Shed("queue_full", after_s)).get("retry-after") == header


def test_a_broken_stream_s_last_event() -> None:
    error = orjson.loads(broken_json(Shed("no_replica", None, "all gone")))["error"]
    assert error == {"message": "the stream broke: all gone", "type": "stream_broken", "param": None,
                     "code": "no_replica"}  # fmt: skip


def test_more_fields() -> None:
    assert orjson.loads(error_json("m", "t", line=3))["error"]["line"] == 3


WHOLE = b'{"error":{"message":"no","type":"BadRequestError","param":"n","code":400},"extra":1}'


@pytest.mark.parametrize(
    ("body", "message", "type_", "code"),
    [
        (WHOLE, "no", "BadRequestError", 400),
        (b'{"error": {"message": "no"}}', "no", "invalid_request_error", None),
        (b'{"error": "no"}', "no", "invalid_request_error", None),
        (b'{"object": "error", "message": "no", "type": "T", "code": 7}', "no", "T", 7),
        (b'{"detail": [{"loc": ["n"]}]}', '[{"loc":["n"]}]', "invalid_request_error", None),
        (
            b'{"error": {"message": 3, "type": "T"}}',
            '{"message":3,"type":"T"}',
            "invalid_request_error",
            None,
        ),
        (b"<html>no\xff", "<html>no\N{REPLACEMENT CHARACTER}", "invalid_request_error", None),
        (b"", "the replica found the request wrong", "invalid_request_error", None),
        (b"[]", "[]", "invalid_request_error", None),
        (b"null", "null", "invalid_request_error", None),
        (b"x" * 5000, "x" * 1000, "invalid_request_error", None),
    ],
)
def test_a_replicas_refusal_in_openais_form(body: bytes, message: str, type_: str, code: object) -> None:
    error = orjson.loads(rejection_json(body))["error"]
    assert (error["message"], error["type"], error["code"]) == (message, type_, code)


def test_one_that_has_the_form_stays_as_it_is() -> None:
    assert rejection_json(WHOLE) is WHOLE
