"""Questions in other words, over a real store in memory and the simulated engine's embeddings."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from fallback_models.answer import Answer, Asked
from fallback_models.cache import AnswerCache
from fallback_models.near import NearQuestions, Vector
from loadtests.embeddings import embedding
from state_store.embedded import EmbeddedRedis
from state_store.memory import MemoryStateStore
from state_store.redis import RedisStateStore
from tests.rig import eventually

QUESTION = "Please tell me how high the highest mountain of the Alps is in metres"
ALIKE = "please tell me how high the highest mountain of the alps is in metres?"
OTHER = "Which rivers flow into the Black Sea, and where?"
ANSWER = Answer("4,806 m.", "m")


@dataclass
class Words:
    """Embeddings that count how often they are asked for."""

    texts: list[str] = field(default_factory=list)
    is_away: bool = False

    async def embed(self, text: str, within_s: float) -> Vector | None:
        self.texts.append(text)
        return None if self.is_away else np.asarray(embedding(text), dtype=np.float32)


def asked(text: str, system: str = "Be brief.", tenant: str = "a", **more: Any) -> Asked:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    return Asked("chat", "chat", {"model": "chat", "messages": messages, "temperature": 0, **more}, tenant)


@dataclass
class Rig:
    store: Any = field(default_factory=MemoryStateStore)
    words: Words = field(default_factory=Words)

    def cache(self, kept: int = 64, min_similarity: float = 0.95, max_age_s: float = 60.0) -> AnswerCache:
        near = NearQuestions(self.store, self.words, min_similarity, kept, "chat")
        return AnswerCache(self.store, max_age_s, near)


async def remember(cache: AnswerCache, question: Asked, answer: Answer = ANSWER) -> None:
    await cache.remember(question, answer)
    assert cache.near is not None
    await cache.near.close()


async def test_a_question_in_nearly_the_same_words() -> None:
    cache = Rig().cache()
    await remember(cache, asked(QUESTION))
    answer = await cache.answer(asked(ALIKE))
    assert answer is not None
    assert answer.text == ANSWER.text
    assert answer.similarity is not None
    assert 0.95 <= answer.similarity <= 1.0
    assert await cache.answer(asked(OTHER)) is None


async def test_the_same_question_needs_no_embedding_and_is_no_near_match() -> None:
    rig = Rig()
    cache = rig.cache()
    await remember(cache, asked(QUESTION))
    before = len(rig.words.texts)
    answer = await cache.answer(asked(QUESTION))
    assert answer is not None
    assert answer.similarity is None
    assert len(rig.words.texts) == before


@pytest.mark.parametrize(
    "other",
    [
        asked(ALIKE, tenant="b"),
        asked(ALIKE, tenant=""),
        asked(ALIKE, system="Answer in French."),
        asked(ALIKE, max_tokens=5),
        asked(ALIKE, stop=["x"]),
        replace(asked(ALIKE), kind="text"),
        replace(asked(ALIKE), model="other"),
        replace(asked(ALIKE), body={**asked(ALIKE).body, "messages": [{"role": "user", "content": ALIKE}]}),
        replace(
            asked(ALIKE), body={**asked(ALIKE).body, "messages": [{"role": "assistant", "content": ALIKE}]}
        ),
        replace(asked(ALIKE), body={**asked(ALIKE).body, "messages": [{"role": "user", "content": [{}]}]}),
    ],
)
async def test_only_the_last_question_may_differ(other: Asked) -> None:
    cache = Rig().cache()
    await remember(cache, asked(QUESTION))
    assert await cache.answer(asked(ALIKE)) is not None
    assert await cache.answer(other) is None


async def test_the_threshold_is_the_declared_one() -> None:
    rig = Rig()
    await remember(rig.cache(), asked(QUESTION))
    half = "Please tell me how high the highest mountain is"
    assert await rig.cache(min_similarity=0.99).answer(asked(half)) is None
    assert await rig.cache(min_similarity=0.6).answer(asked(half)) is not None


async def test_text_completions() -> None:
    cache = Rig().cache()
    question = Asked("chat", "text", {"prompt": QUESTION, "temperature": 0}, "a")
    await remember(cache, question)
    assert await cache.answer(replace(question, body={**question.body, "prompt": ALIKE})) is not None


async def test_another_gateway_finds_it() -> None:
    rig = Rig()
    mine, other = rig.cache(), rig.cache()
    await remember(mine, asked(QUESTION))
    assert await other.answer(asked(ALIKE)) is not None


async def test_another_gateway_finds_it_in_a_real_redis() -> None:
    server = EmbeddedRedis()
    await server.start()
    mine, other = (RedisStateStore(server.url, timeout_s=5.0) for _ in range(2))
    try:
        await remember(Rig(mine).cache(), asked(QUESTION))
        answer = await Rig(other).cache().answer(asked(ALIKE))
        assert answer is not None
        assert answer.text == ANSWER.text
        assert answer.similarity is not None
        assert answer.similarity >= 0.95
    finally:
        await mine.close()
        await other.close()
        await server.stop()


async def test_what_another_gateway_entered_later_is_found_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    mine, other = rig.cache(), rig.cache()
    monkeypatch.setattr("fallback_models.near.REFRESH_S", 0.05)
    assert await other.answer(asked(ALIKE)) is None
    await remember(mine, asked(QUESTION))

    async def is_found() -> bool:
        return await other.answer(asked(ALIKE)) is not None

    await eventually(is_found, 2.0)


async def test_a_circle_has_as_many_questions_as_places() -> None:
    rig = Rig()
    cache = rig.cache(kept=4)
    for number in range(40):
        await remember(cache, asked(f"question {number} of many about {number * 7}"))
    groups = [g for g in rig.store._groups if g.startswith("questions:")]
    assert len(groups) == 1
    assert len(await rig.store.scan(groups[0])) <= 4


async def test_conversations_without_end_are_kept_within_bounds() -> None:
    """As many circles as there are conversations, and no more groups than shelves."""
    rig = Rig()
    cache = rig.cache(kept=2)
    for number in range(200):
        await remember(cache, asked(QUESTION, system=f"You are number {number}."))
    groups = [g for g in rig.store._groups if g.startswith("questions:")]
    assert len(groups) <= 64
    assert sum([len(await rig.store.scan(g)) for g in groups]) <= 128


async def test_the_process_holds_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fallback_models.near.LOCAL_VECTORS", 10)
    cache = Rig().cache()
    for number in range(30):
        question = asked(QUESTION, system=f"You are number {number}.")
        await remember(cache, question)
        assert await cache.answer(asked(ALIKE, system=f"You are number {number}.")) is not None
    assert cache.near is not None
    assert sum(len(shelf) for shelf in cache.near._shelves.values()) <= 11


async def test_without_embeddings_the_same_question_is_found_still() -> None:
    rig = Rig()
    cache = rig.cache()
    await remember(cache, asked(QUESTION))
    rig.words.is_away = True
    assert await cache.answer(asked(ALIKE)) is None
    assert await cache.answer(asked(QUESTION)) is not None


async def test_a_vector_whose_answer_is_gone_is_a_miss() -> None:
    rig = Rig()
    cache = rig.cache()
    await remember(cache, asked(QUESTION))
    for key in await rig.store.scan("answers:chat"):
        await rig.store.delete("answers:chat", key)
    assert await cache.answer(asked(ALIKE)) is None


@pytest.mark.parametrize(
    "raw", [b"", b"x" * 48, b"x" * 51, b"x" * 48 + b"\0\0", b"x" * 48 + b"\0\x7c" * 128, b"x" * 56]
)
async def test_broken_vectors_are_none(raw: bytes) -> None:
    rig = Rig()
    await remember(rig.cache(), asked(QUESTION))
    (group,) = [g for g in rig.store._groups if g.startswith("questions:")]
    await rig.store.put(group, "63", raw, ttl_s=60)
    assert await rig.cache().answer(asked(ALIKE)) is not None
