"""Answers that were given before: exact matches of complete, greedy answers, kept in the state store."""

from dataclasses import asdict, dataclass
from hashlib import sha256
from time import time
from typing import Any

import orjson

from fallback_models.answer import Answer
from state_store.protocol import StateStore, StateStoreUnavailable

MAX_ANSWER_BYTES = 256 * 1024
IRRELEVANT = ("stream", "stream_options", "user", "metadata", "store", "model", "return_token_ids")
"""Fields that do not change what the answer says."""


@dataclass(frozen=True, slots=True)
class AnswerCache:
    """Remembers and finds answers. `max_age_s` bounds both how long they are kept and how old a served one may be."""

    store: StateStore
    max_age_s: float

    async def answer(self, model: str, kind: str, body: dict[str, Any]) -> Answer | None:
        if not is_deterministic(body):
            return None
        try:
            raw = await self.store.get(f"answers:{model}", key_of(kind, body))
        except StateStoreUnavailable:
            return None
        return _fresh(raw, self.max_age_s)

    async def remember(self, model: str, kind: str, body: dict[str, Any], answer: Answer) -> None:
        """Keeps a complete answer, if the request was deterministic."""
        if not is_deterministic(body) or len(answer.text.encode()) > MAX_ANSWER_BYTES:
            return
        raw = orjson.dumps({**asdict(answer), "as_of": time()})
        try:
            await self.store.put(f"answers:{model}", key_of(kind, body), raw, ttl_s=self.max_age_s)
        except StateStoreUnavailable:
            return


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


def key_of(kind: str, body: dict[str, Any]) -> str:
    """The same for two requests that greedy decoding answers alike."""
    relevant = {k: v for k, v in body.items() if k not in IRRELEVANT and v is not None}
    canonical = orjson.dumps([kind, relevant], option=orjson.OPT_SORT_KEYS)
    return sha256(canonical).hexdigest()


def _fresh(raw: bytes | None, max_age_s: float) -> Answer | None:
    if raw is None:
        return None
    try:
        fields = orjson.loads(raw)
        age_s = time() - float(fields.pop("as_of"))
        answer = Answer(**{**fields, "age_s": max(0.0, age_s)})
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return answer if age_s <= max_age_s else None
