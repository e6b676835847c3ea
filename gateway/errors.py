"""What a client is told when it gets no answer: OpenAI's error form, HTTP codes and headers, gRPC codes and details.

The only place that knows codes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar, Literal

import orjson

from gateway.policy.decision import CONTENDED, Shed

_LONGEST_WORDS = 1000
"""Of a replica's refusal that is in no known form, in characters."""


class ClientError(Exception):
    """The caller's own mistake. Never teaches a breaker anything."""

    status = 400
    type = "invalid_request_error"
    code: str | None = None
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param = message, param

    def to_json(self) -> bytes:
        return error_json(self.message, self.type, self.code, self.param)


class BadRequest(ClientError):  # noqa: N818 - OpenAI's and HTTP's name for it
    """400: the request can't be understood."""


class ContextTooLong(BadRequest):
    """400: no tier that the caller accepts has a window for even the last turn."""

    code = "context_length_exceeded"


class Forbidden(ClientError):  # noqa: N818
    """403: not for this caller."""

    status = 403
    type = "permission_error"


class Unauthorized(ClientError):  # noqa: N818
    """401: no key, or one that nobody knows."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("a valid API key is needed: send it as `Authorization: Bearer KEY`")


class ModelNotFound(ClientError):  # noqa: N818
    """404: no such model here."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model `{model}` does not exist.", param="model")


class TooLarge(ClientError):  # noqa: N818
    """413: the body is larger than the gateway reads."""

    status = 413

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request body is larger than {limit_bytes} bytes.")


class UrlTooLong(ClientError):  # noqa: N818
    """414: the target of the request is longer than any that is there."""

    status = 414

    def __init__(self) -> None:
        super().__init__("The URL is too long.")


class HeadTooLarge(ClientError):  # noqa: N818
    """431: more headers, or larger ones, than the gateway reads."""

    status = 431

    def __init__(self) -> None:
        super().__init__("The headers are too large, or too many.")


class TimedOut(ClientError):  # noqa: N818
    """408: the request did not become whole in time."""

    status = 408

    def __init__(self) -> None:
        super().__init__("The request did not arrive in time.")


class NoRoom(ClientError):  # noqa: N818
    """429: as many connections are in use as there may be."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    headers: ClassVar[Mapping[str, str]] = {"x-shed-reason": "queue_full", "retry-after": "1"}

    def __init__(self) -> None:
        super().__init__("Too many connections are in use. Please try again shortly.")


def error_json(
    message: str, type_: str, code: str | None = None, param: str | None = None, **more: Any
) -> bytes:
    """An error in OpenAI's form."""
    return orjson.dumps({"error": {"message": message, "type": type_, "param": param, "code": code, **more}})


def rejection_json(body: bytes) -> bytes:
    """A replica's refusal in OpenAI's form: as it is where it has that, else with what it says in it."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        told = body.decode("utf-8", "replace")
    error = told.get("error", told) if isinstance(told, dict) else told
    fields = error if isinstance(error, dict) and isinstance(error.get("message"), str) else {}
    type_ = fields.get("type")
    if isinstance(type_, str) and error is not told:
        return body
    said = fields.get("message") or (error.get("detail", error) if isinstance(error, dict) else error)
    words = said if isinstance(said, str) else orjson.dumps(said).decode()
    type_ = type_ if isinstance(type_, str) else ClientError.type
    message = words[:_LONGEST_WORDS] or "the replica found the request wrong"
    return error_json(message, type_, fields.get("code"), fields.get("param"))


def not_offered_json(model: str, what: str) -> bytes:
    """Of a model that can't do what was asked of it."""
    return error_json(
        f"The model `{model}` gives no {what}.", "invalid_request_error", "not_offered", "model"
    )


def shed_status(shed: Shed) -> int:
    """429 while capacity exists but is contended, 503 when nothing that the caller accepts can serve."""
    return 429 if shed.reason in CONTENDED else 503


def shed_json(shed: Shed) -> bytes:
    type_ = "rate_limit_error" if shed.reason in CONTENDED else "service_unavailable_error"
    return error_json(shed.detail or shed.reason, type_, shed.reason)


def broken_json(shed: Shed) -> bytes:
    """The one error event of a stream that has begun and can't be finished."""
    return error_json(f"the stream broke: {shed.detail or shed.reason}", "stream_broken", shed.reason)


def shed_headers(shed: Shed) -> dict[str, str]:
    headers: dict[str, str] = {"x-shed-reason": shed.reason}
    if shed.retry_after_s is not None:
        headers["retry-after"] = str(whole_seconds(shed.retry_after_s))
    return headers


def whole_seconds(retry_after_s: float) -> int:
    """As a header says it: whoever keeps to it does not come too early."""
    return max(1, ceil(retry_after_s))


GrpcCode = Literal[
    "INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNAVAILABLE",
    "DEADLINE_EXCEEDED", "INTERNAL",
]  # fmt: skip
_GRPC_CODES: dict[int, GrpcCode] = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


@dataclass(frozen=True, slots=True)
class GrpcError:
    """What a gRPC client gets instead of an answer, or of the rest of one."""

    code: GrpcCode
    message: str
    reason: str = ""
    """Why nothing could serve; empty when the mistake is the caller's."""
    retry_after_s: float | None = None


def grpc_error_of(error: ClientError) -> GrpcError:
    """The caller's own mistake."""
    where = f" ({error.param})" if error.param else ""
    return GrpcError(grpc_code(error.status), f"{error.message}{where}")


def grpc_rejection(status: int, body: bytes) -> GrpcError:
    """A replica's own refusal of the caller's request."""
    return GrpcError(grpc_code(status), str(orjson.loads(rejection_json(body))["error"]["message"]))


def grpc_shed(shed: Shed) -> GrpcError:
    """No answer. A deadline that has passed is its own code; one that would be missed is contention, and trying later helps."""
    has_expired = shed.reason == "deadline" and shed.retry_after_s is None
    code: GrpcCode = "DEADLINE_EXCEEDED" if has_expired else grpc_code(shed_status(shed))
    return GrpcError(code, shed.detail or shed.reason, shed.reason, shed.retry_after_s)


def grpc_broken(message: str, reason: str) -> GrpcError:
    """The end of a stream that has begun and can't be finished."""
    return GrpcError("DEADLINE_EXCEEDED" if reason == "deadline" else "UNAVAILABLE", message, reason)


def grpc_internal() -> GrpcError:
    """The gateway's own fault, of which nothing is told."""
    return GrpcError("INTERNAL", "the gateway failed")


def grpc_unread() -> GrpcError:
    """The end of a stream whose client reads nothing of it."""
    return GrpcError("UNAVAILABLE", "the client left what was sent to it unread for too long")


def grpc_code(status: int) -> GrpcCode:
    """The code for an HTTP status of the caller's mistakes and of refusals."""
    return _GRPC_CODES.get(status, "INVALID_ARGUMENT" if status < 500 or status == 501 else "INTERNAL")
