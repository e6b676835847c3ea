"""All targets by name."""

from collections.abc import Callable

from fuzz import answers, connection, requests

Target = Callable[[bytes], None]

TARGETS: dict[str, Target] = {
    "http_request": requests.http_request,
    "http_fields": requests.http_fields,
    "grpc_request": requests.grpc_request,
    "pin": requests.pin,
    "connection": connection.connection,
    "events": answers.events,
    "response": answers.response,
    "stream": answers.stream,
    "stream_fields": answers.stream_fields,
    "whole": answers.whole,
}
