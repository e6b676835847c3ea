"""Questions that were answered before, found by what they mean: their embeddings, kept in the state store as float16.

Only the last thing that the user says may differ. Everything else of a request (instructions, earlier turns, parameters)
and its tenant make up its *circle*, and questions are compared inside one circle alone. A circle has a bounded number of
places, and a question takes the place that its hash names, so that nothing has to be evicted.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from hashlib import sha256
from time import monotonic
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import orjson

from fallback_models.answer import Asked
from state_store.protocol import StateStore, StateStoreUnavailable

Vector = npt.NDArray[np.float32]
"""Of length 1, shape `(dimensions,)`."""
KEY_BYTES = 32
REFRESH_S = 2.0
"""How old the copy of a circle may be, which holds what other gateways entered."""
LOCAL_VECTORS = 32_768
"""Over all circles, in this process."""
ENTERING_AT_ONCE = 32
"""Questions whose embeddings are on their way; further ones are not entered."""


class Embeds(Protocol):
    """Whoever turns text into vectors."""

    async def embed(self, text: str, within_s: float) -> Vector | None:
        """A vector of length 1; None when there is none in time."""
        ...


@dataclass(frozen=True, slots=True)
class Near:
    """A question that is near, by the key of its answer; `similarity` is the cosine."""

    answer_key: str
    similarity: float


@dataclass(slots=True)
class _Circle:
    read_at: float
    vectors: dict[str, tuple[bytes, Vector]] = field(default_factory=dict)
    """Answer key and vector by place."""

    def nearest(self, vector: Vector) -> Near | None:
        known = [(key, v) for key, v in self.vectors.values() if v.shape == vector.shape]
        if not known:
            return None
        cosines = np.stack([v for _, v in known]) @ vector
        best = int(np.argmax(cosines))
        return Near(known[best][0].hex(), float(cosines[best]))


class NearQuestions:
    """Finds and enters questions of one model.

    Args:
        min_similarity: the cosine from which on two questions count as one.
        kept: places of a circle.
    """

    def __init__(
        self, store: StateStore, embeddings: Embeds, min_similarity: float, kept: int, model: str
    ) -> None:
        self._store, self._embeddings, self._min_similarity = store, embeddings, min_similarity
        self._kept, self._model = kept, model
        self._circles: OrderedDict[str, _Circle] = OrderedDict()
        self._entering: set[asyncio.Task[None]] = set()

    async def find(self, asked: Asked, relevant: dict[str, Any]) -> Near | None:
        """The nearest question that is near enough."""
        if (split := _split(asked, relevant)) is None:
            return None
        text, group = split
        circle = await self._circle(group)
        if not circle.vectors or (vector := await self._embeddings.embed(text, asked.within_s)) is None:
            return None
        found = circle.nearest(vector)
        return found if found is not None and found.similarity >= self._min_similarity else None

    def enter_soon(self, asked: Asked, relevant: dict[str, Any], answer_key: str, ttl_s: float) -> None:
        """Enters a question whose answer is kept under `answer_key`, beside the request."""
        split = _split(asked, relevant)
        if split is not None and len(self._entering) < ENTERING_AT_ONCE:
            self._begin(self._enter(*split, bytes.fromhex(answer_key), ttl_s))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _enter(self, text: str, group: str, answer_key: bytes, ttl_s: float) -> None:
        vector = await self._embeddings.embed(text, 60.0)
        if vector is None:
            return
        place = str(int.from_bytes(answer_key[:8], "big") % self._kept)
        if group in self._circles:
            self._circles[group].vectors[place] = (answer_key, vector)
        raw = answer_key + vector.astype(np.float16).tobytes()
        try:
            await self._store.put(self._group(group), place, raw, ttl_s=ttl_s)
        except StateStoreUnavailable:
            return

    async def _circle(self, group: str) -> _Circle:
        known, now = self._circles.get(group), monotonic()
        if known is None or now - known.read_at > REFRESH_S:
            try:
                raws = await self._store.scan(self._group(group))
                known = _Circle(
                    now, {place: v for place, raw in raws.items() if (v := _read(raw)) is not None}
                )
            except StateStoreUnavailable:
                known = known or _Circle(now)
            self._circles[group] = known
        self._circles.move_to_end(group)
        self._keep_bounds()
        return known

    def _keep_bounds(self) -> None:
        """Forgets the circles that were not asked for the longest; the one just asked for stays."""
        held = sum(len(c.vectors) + 1 for c in self._circles.values())
        while held > LOCAL_VECTORS and len(self._circles) > 1:
            held -= len(self._circles.popitem(last=False)[1].vectors) + 1

    def _group(self, circle: str) -> str:
        return f"questions:{self._model}:{circle}"

    async def close(self) -> None:
        """Waits a little for what is being entered."""
        if self._entering:
            _, late = await asyncio.wait(self._entering, timeout=0.5)
            for task in late:
                task.cancel()


def _split(asked: Asked, relevant: dict[str, Any]) -> tuple[str, str] | None:
    """What the user says last, and the circle of all else; None where that is no text."""
    if asked.kind == "chat":
        *before, last = relevant.get("messages") or [{}]
        text, rest = last.get("content"), {**relevant, "messages": [*before, {**last, "content": ""}]}
        if last.get("role") != "user":
            return None
    else:
        text, rest = relevant.get("prompt"), {**relevant, "prompt": ""}
    if not isinstance(text, str) or not text.strip():
        return None
    circle = orjson.dumps([asked.tenant, asked.kind, rest], option=orjson.OPT_SORT_KEYS)
    return text, sha256(circle).hexdigest()[:32]


def _read(raw: bytes) -> tuple[bytes, Vector] | None:
    if len(raw) <= KEY_BYTES or (len(raw) - KEY_BYTES) % 2:
        return None
    vector = np.frombuffer(raw[KEY_BYTES:], dtype=np.float16).astype(np.float32)
    length = float(np.linalg.norm(vector))
    return (raw[:KEY_BYTES], vector / length) if np.isfinite(length) and length > 0 else None
