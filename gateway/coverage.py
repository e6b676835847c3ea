"""What a lower tier leaves out of a request, as its config declares, and how the answer says so."""

from dataclasses import replace
from typing import Any

from gateway.request import Request, inexactness
from gateway.specs import GivesUp

LOGPROBS = ("logprobs", "top_logprobs", "prompt_logprobs")
DEFAULT_TEXT_TOKENS = 16
"""Of a text completion that names no limit."""


def covered(request: Request, gives_up: GivesUp) -> tuple[Request, str]:
    """The request as the tier answers it, and what was left out of it: `max_tokens=64, n=1, logprobs`; empty for nothing."""
    if request.kind == "embedding":
        return request, ""
    body = dict(request.body)
    left_out = [*_shorter(body, request, gives_up.max_tokens), *_fewer(body, gives_up.n)]
    if gives_up.logprobs:
        asked = [name for name in LOGPROBS if body.pop(name, None) not in (None, False, 0)]
        left_out += ["logprobs"] if asked else []
    if not left_out:
        return request, ""
    return replace(request, body=body, inexact_because=inexactness(body)), ", ".join(left_out)


def names_of(given_up: str) -> list[str]:
    """What was left out, without how much of it."""
    return [part.partition("=")[0] for part in given_up.split(", ")] if given_up else []


def limit_length(body: dict[str, Any], tokens: int) -> None:
    """Has an answer end after so many tokens, by the name that its client used."""
    body["max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"] = tokens


def _shorter(body: dict[str, Any], request: Request, most: int | None) -> list[str]:
    asked = DEFAULT_TEXT_TOKENS if request.leaves_its_length_open else request.max_tokens
    if most is None or (asked is not None and asked <= most):
        return []
    limit_length(body, most)
    if isinstance(body.get("min_tokens"), int):
        body["min_tokens"] = min(body["min_tokens"], most)
    return [f"max_tokens={most}"]


def _fewer(body: dict[str, Any], most: int | None) -> list[str]:
    if most is None:
        return []
    found = []
    for name in ("n", "best_of"):
        if isinstance(body.get(name), int) and body[name] > most:
            body[name] = most
            found.append(f"{name}={most}")
    return found
