"""The answer cache over a real store in memory."""

from time import time
from typing import Any

import orjson
import pytest

from fallback_models.answer import Answer, Asked
from fallback_models.cache import MAX_ANSWER_BYTES, AnswerCache, is_deterministic, key_of
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStoreUnavailable

BODY = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
ANSWER = Answer("hello", "m", prompt_tokens=3, completion_tokens=1)


def asked(body: dict[str, Any], kind: str = "chat", model: str = "chat", tenant: str = "") -> Asked:
    return Asked(model, kind, body, tenant)


def cache(store: MemoryStateStore | None = None, max_age_s: float = 60.0) -> AnswerCache:
    return AnswerCache(store or MemoryStateStore(), max_age_s)


async def find(
    found: AnswerCache, body: dict[str, Any], kind: str = "chat", model: str = "chat"
) -> str | None:
    answer = await found.answer(asked(body, kind, model))
    return None if answer is None else answer.text


async def test_what_was_answered_before() -> None:
    found = cache()
    await found.remember(asked(BODY), ANSWER)
    answer = await found.answer(asked(BODY))
    assert answer is not None
    assert (answer.text, answer.model, answer.prompt_tokens, answer.completion_tokens) == ("hello", "m", 3, 1)
    assert 0.0 <= answer.age_s < 5.0


SAME: list[dict[str, Any]] = [
    {},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"user": "somebody", "metadata": {"a": "b"}, "store": True},
    {"model": "the name of a replica"},
    {"top_p": None},
]
OTHER: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi!"}]},
    {"messages": [{"role": "system", "content": "hi"}]},
    {"max_tokens": 5},
    {"stop": ["x"]},
    {"seed": 1},
    {"some_new_field": 1},
]


@pytest.mark.parametrize("changes", SAME)
async def test_the_same_question(changes: dict[str, Any]) -> None:
    found = cache()
    await found.remember(asked(BODY), ANSWER)
    assert await find(found, {**BODY, **changes}) == "hello"


@pytest.mark.parametrize("changes", OTHER)
async def test_another_question(changes: dict[str, Any]) -> None:
    found = cache()
    await found.remember(asked(BODY), ANSWER)
    assert await find(found, {**BODY, **changes}) is None


async def test_other_models_and_kinds_are_apart() -> None:
    found = cache()
    await found.remember(asked(BODY), ANSWER)
    assert await find(found, BODY, model="other") is None
    assert await find(found, BODY, kind="text") is None


async def test_tenants_are_apart() -> None:
    found = cache()
    await found.remember(asked(BODY, tenant="a"), ANSWER)
    assert await found.answer(asked(BODY, tenant="a")) is not None
    for other in ("b", ""):
        assert await found.answer(asked(BODY, tenant=other)) is None


async def test_an_answer_that_was_stopped_is_not_kept() -> None:
    found = cache()
    await found.remember(asked(BODY), Answer("hel", "m", "content_filter"))
    assert await find(found, BODY) is None


def test_the_order_of_fields_does_not_matter() -> None:
    one, other = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert key_of(asked(one)) == key_of(asked(other))


DETERMINISTIC = [
    ({"temperature": 0}, True),
    ({"temperature": 0.0, "n": 1}, True),
    ({}, False),  # the replica's default is not greedy
    ({"temperature": 0.1}, False),
    ({"temperature": None}, False),
    ({"temperature": 0, "n": 2}, False),
    ({"temperature": 0, "best_of": 2}, False),
    ({"temperature": 0, "tools": [{}]}, False),
    ({"temperature": 0, "functions": [{}]}, False),
    ({"temperature": 0, "logprobs": True}, False),
    ({"temperature": 0, "logprobs": 0}, False),  # a text completion's are those of the sampled tokens
    ({"temperature": 0, "logprobs": False, "top_logprobs": 0, "tools": []}, True),
    ({"temperature": 0, "prompt_logprobs": 1}, False),
    ({"temperature": 0, "echo": True}, False),
    ({"temperature": 0, "return_token_ids": True}, False),
    ({"temperature": 0, "prompt": "a"}, True),
    ({"temperature": 0, "prompt": ["a"]}, True),
    ({"temperature": 0, "prompt": [1, 2, 3]}, True),
    ({"temperature": 0, "prompt": ["a", "b"]}, False),  # several answers
    ({"temperature": 0, "prompt": [[1], [2]]}, False),
]


@pytest.mark.parametrize(("fields", "expected"), DETERMINISTIC)
def test_is_deterministic(fields: dict[str, Any], expected: bool) -> None:
    assert is_deterministic(fields) is expected


async def test_what_is_not_deterministic_is_neither_kept_nor_found() -> None:
    found, warm = cache(), {**BODY, "temperature": 1}
    await found.remember(asked(warm), ANSWER)
    assert await find(found, warm) is None
    await found.remember(asked(BODY), ANSWER)
    assert await find(found, warm) is None


@pytest.mark.parametrize(
    ("text", "is_kept"), [("x" * MAX_ANSWER_BYTES, True), ("é" * MAX_ANSWER_BYTES, False)]
)
async def test_a_very_long_answer_is_not_kept(text: str, is_kept: bool) -> None:
    found = cache()
    await found.remember(asked(BODY), Answer(text, "m"))
    assert (await find(found, BODY) is not None) is is_kept


async def test_an_answer_older_than_its_age_is_a_miss_though_the_store_still_has_it() -> None:
    store = MemoryStateStore()
    raw = {"text": "old", "model": "m", "as_of": time() - 100}
    await store.put("answers:chat", key_of(asked(BODY)), orjson.dumps(raw), ttl_s=999)
    assert await find(cache(store, max_age_s=60.0), BODY) is None
    answer = await cache(store, max_age_s=200.0).answer(asked(BODY))
    assert answer is not None
    assert 100 <= answer.age_s < 110


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"{}", b'{"text": "x"}', b'{"as_of": "x"}', b'{"as_of": 1, "new": 2}']
)
async def test_a_broken_value_is_a_miss(raw: bytes) -> None:
    store = MemoryStateStore()
    await store.put("answers:chat", key_of(asked(BODY)), raw, ttl_s=999)
    assert await find(cache(store, max_age_s=1e12), BODY) is None


class Gone(MemoryStateStore):
    """A store that does not answer."""

    async def get(self, group: str, key: str) -> bytes | None:
        raise StateStoreUnavailable("gone")

    async def put(
        self, group: str, key: str, value: bytes, *, ttl_s: float, only_if_absent: bool = False
    ) -> bool:
        raise StateStoreUnavailable("gone")


async def test_without_the_store_it_is_a_miss() -> None:
    found = cache(Gone())
    await found.remember(asked(BODY), ANSWER)
    assert await find(found, BODY) is None
