"""Answers that were given before: complete, greedy ones, kept in the state store, each for its own tenant alone."""

from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from time import time
from typing import Any

import orjson

from fallback_models.answer import Answer, Asked
from fallback_models.near import NearQuestions
from state_store.protocol import StateStore, StateStoreUnavailable

MAX_ANSWER_BYTES = 256 * 1024
COMPLETE = ("stop", "length")
IRRELEVANT = ("stream", "stream_options", "user", "metadata", "store", "model", "return_token_ids")
"""Fields that do not change what the answer says."""


@dataclass(frozen=True, slots=True)
class AnswerCache:
    """Remembers and finds answers. `max_age_s` bounds both how long they are kept and how old a served one may be."""

    store: StateStore
    max_age_s: float
    near: NearQuestions | None = None
    """Where the tier also gives the answers to questions that are nearly the same."""

    async def answer(self, asked: Asked) -> Answer | None:
        if not is_deterministic(asked.body):
            return None
        answer = await self._find(asked.model, key_of(asked))
        if answer is not None or self.near is None:
            return answer
        found = await self.near.find(asked, relevant(asked.body))
        answer = await self._find(asked.model, found.answer_key) if found is not None else None
        return (
            replace(answer, similarity=found.similarity) if answer is not None and found is not None else None
        )

    async def _find(self, model: str, key: str) -> Answer | None:
        try:
            return _fresh(await self.store.get(f"answers:{model}", key), self.max_age_s)
        except StateStoreUnavailable:
            return None

    async def remember(self, asked: Asked, answer: Answer) -> None:
        """Keeps a complete answer, if the request was deterministic."""
        if not is_deterministic(asked.body) or answer.finish_reason not in COMPLETE:
            return
        if len(answer.text.encode()) > MAX_ANSWER_BYTES:
            return
        raw = orjson.dumps({**asdict(answer), "as_of": time()})
        try:
            await self.store.put(f"answers:{asked.model}", key_of(asked), raw, ttl_s=self.max_age_s)
        except StateStoreUnavailable:
            return
        if self.near is not None:
            self.near.enter_soon(asked, relevant(asked.body), key_of(asked), self.max_age_s)


def is_deterministic(body: dict[str, Any]) -> bool:
    """Greedy, one prompt, one answer, and nothing asked for beside its text."""
    plain = not any(
        body.get(f)
        for f in ("tools", "functions", "top_logprobs", "prompt_logprobs", "echo", "return_token_ids")
    )
    # 0 asks a text completion for the logprobs of the sampled tokens; it equals False, and is not.
    has_logprobs = body.get("logprobs") is not None and body.get("logprobs") is not False
    has_one = all(body.get(f) in (None, 1) for f in ("n", "best_of")) and _is_one(body.get("prompt"))
    return plain and not has_logprobs and has_one and body.get("temperature") == 0


def _is_one(prompt: Any) -> bool:
    """Whether a text completion's prompt is a single one: a string, alone or in a list, or token ids."""
    if not isinstance(prompt, list):
        return True
    return all(isinstance(t, int) for t in prompt) or (len(prompt) == 1 and isinstance(prompt[0], str))


def relevant(body: dict[str, Any]) -> dict[str, Any]:
    """The fields that change what the answer says."""
    return {k: v for k, v in body.items() if k not in IRRELEVANT and v is not None}


def key_of(asked: Asked) -> str:
    """The same for two requests of one tenant that greedy decoding answers alike."""
    parts = [asked.tenant, asked.kind, relevant(asked.body)]
    return sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _fresh(raw: bytes | None, max_age_s: float) -> Answer | None:
    if raw is None:
        return None
    try:
        fields = orjson.loads(raw)
        age_s = time() - float(fields.pop("as_of"))
        answer = Answer(**{**fields, "age_s": max(0.0, age_s), "similarity": None})
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return answer if age_s <= max_age_s else None
