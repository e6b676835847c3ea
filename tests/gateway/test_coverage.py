"""What a lower tier leaves out, as a table."""

import orjson
import pytest

from gateway.coverage import covered
from gateway.request import Kind, parse_request
from gateway.specs import GivesUp

ALL = GivesUp(max_tokens=64, n=2, logprobs=True)


def cover(kind: Kind, gives_up: GivesUp, **fields: object) -> tuple[dict[str, object], str]:
    """The fields that differ from the client's, and what is told of it."""
    prompt = {"messages": [{"role": "user", "content": "x"}]} if kind == "chat" else {"prompt": "x"}
    request = parse_request(kind, orjson.dumps({"model": "m", **prompt, **fields}), {})
    before = dict(request.body)
    found, told = covered(request, gives_up)
    assert request.body == before, "the client's own request stays as it is"
    names = before.keys() | found.body.keys()
    return {n: found.body.get(n) for n in sorted(names) if found.body.get(n) != before.get(n)}, told


@pytest.mark.parametrize(
    ("kind", "gives_up", "fields", "changed", "told"),
    [
        ("chat", GivesUp(), {"max_tokens": 900, "n": 3, "logprobs": True}, {}, ""),
        ("chat", ALL, {"max_tokens": 64, "n": 2}, {}, ""),
        ("chat", ALL, {"max_tokens": 900}, {"max_tokens": 64}, "max_tokens=64"),
        ("chat", ALL, {"max_completion_tokens": 900}, {"max_completion_tokens": 64}, "max_tokens=64"),
        # a chat without a limit goes on to the model's window; a text ends at 16
        ("chat", ALL, {}, {"max_tokens": 64}, "max_tokens=64"),
        ("text", ALL, {}, {}, ""),
        ("text", GivesUp(max_tokens=8), {}, {"max_tokens": 8}, "max_tokens=8"),
        ("chat", ALL, {"max_tokens": 900, "min_tokens": 100}, {"max_tokens": 64, "min_tokens": 64}, "max_tokens=64"),
        ("chat", ALL, {"max_tokens": 9, "n": 5}, {"n": 2}, "n=2"),
        ("text", ALL, {"n": 3, "best_of": 4}, {"best_of": 2, "n": 2}, "n=2, best_of=2"),
        ("chat", ALL, {"max_tokens": 9, "logprobs": True, "top_logprobs": 5},
         {"logprobs": None, "top_logprobs": None}, "logprobs"),
        ("chat", ALL, {"max_tokens": 9, "logprobs": False}, {"logprobs": None}, ""),
        ("chat", ALL, {"max_tokens": 99, "n": 9, "logprobs": True}, {"logprobs": None, "max_tokens": 64, "n": 2},
         "max_tokens=64, n=2, logprobs"),
    ],
)  # fmt: skip
def test_covered(
    kind: Kind, gives_up: GivesUp, fields: dict[str, object], changed: dict[str, object], told: str
) -> None:
    found, said = cover(kind, gives_up, **fields)
    assert said == told
    assert found == (changed if told else {})


def test_without_log_probabilities_it_can_be_continued() -> None:
    body = orjson.dumps({"model": "m", "prompt": "x", "logprobs": 5})
    request = parse_request("text", body, {})
    assert request.inexact_because == "logprobs"
    assert covered(request, ALL)[0].inexact_because == ""
