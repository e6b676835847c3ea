"""How many turns are left out, with a tokenizer of one token a character and none around messages."""

from typing import Any

import orjson
import pytest

from gateway.context import TooLong, _fit
from gateway.request import Request, parse_request

Json = dict[str, Any]


async def characters(body: Json) -> int:
    return sum(len(m["content"]) for m in body["messages"])


def request(*lengths: int, **fields: object) -> Request:
    """A system prompt of the first length, then user and assistant in turn."""
    roles = ["system", *(["user", "assistant"] * len(lengths))][: len(lengths)]
    messages = [{"role": r, "content": "x" * n} for r, n in zip(roles, lengths, strict=True)]
    return parse_request("chat", orjson.dumps({"model": "m", "messages": messages, **fields}), {})


@pytest.mark.parametrize(
    ("lengths", "window", "fields", "kept", "told"),
    [
        # 100 for the prompt at most, as a quarter of 132 is left for the answer
        ((10, 20, 20, 20, 20, 9), 132, {}, [10, 20, 20, 20, 20, 9], ""),
        ((10, 20, 20, 20, 20, 10), 132, {}, [10, 20, 20, 10], "context=1 turn out"),
        ((10, 20, 20, 20, 20, 60), 132, {}, [10, 60], "context=2 turns out"),
        ((10, 20, 20, 20, 20, 9), 132, {"max_tokens": 20}, [10, 20, 20, 20, 20, 9], ""),
        ((10, 20, 20, 20, 20, 9), 132, {"max_tokens": 60}, [10, 20, 20, 9], "context=1 turn out"),
        # the last turn is kept, and the answer gets what is left
        ((10, 20, 20, 20, 20, 80), 132, {"max_tokens": 60}, [10, 80], "context=2 turns out, max_tokens=42"),
        ((10, 80), 132, {"max_tokens": 900}, [10, 80], "max_tokens=42"),
        ((10, 80), 132, {"max_completion_tokens": 900}, [10, 80], "max_tokens=42"),
        # an answer of any length that is not asked for needs 16 at least
        ((10, 106), 132, {}, [10, 106], ""),
        ((10, 119), 132, {"max_tokens": 3}, [10, 119], ""),
    ],
)  # fmt: skip
async def test_the_fewest_turns_go(
    lengths: tuple[int, ...], window: int, fields: Json, kept: list[int], told: str
) -> None:
    asked = request(*lengths, **fields)
    before = orjson.dumps(asked.body)
    fitted, said = await _fit(asked, window, characters, "small")
    assert ([len(m["content"]) for m in fitted.body["messages"]], said) == (kept, told)
    assert orjson.dumps(asked.body) == before, "the client's own request stays as it is"
    answer = fitted.max_tokens or 16
    assert await characters(fitted.body) + answer <= window


@pytest.mark.parametrize(
    ("lengths", "fields"), [((10, 107), {}), ((10, 20, 20, 107), {}), ((10, 120), {"max_tokens": 3})]
)
async def test_what_does_not_fit_is_said(lengths: tuple[int, ...], fields: Json) -> None:
    with pytest.raises(TooLong, match="window of small has 132"):
        await _fit(request(*lengths, **fields), 132, characters, "small")


async def test_counts_are_few() -> None:
    counted = 0

    async def counting(body: Json) -> int:
        nonlocal counted
        counted += 1
        return await characters(body)

    _, told = await _fit(request(10, *[10] * 1001), 1000, counting, "small")
    assert told == "context=464 turns out"
    assert counted <= 12
