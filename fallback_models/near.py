"""Questions that were answered before, found by what they mean: their embeddings, kept in the state store as float16.

Only the last thing that the user says may differ. Everything else of a request (instructions, earlier turns, parameters)
and its tenant make up its *circle*, and questions are compared inside one circle alone. Circles share a fixed number of
shelves, each with a bounded number of places, and a question takes the place that its hash names: so nothing has to be
evicted, and nothing grows with the number of conversations.
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
SHELVES = 64
KEY_BYTES, CIRCLE_BYTES = 32, 16
REFRESH_S = 2.0
"""How old the copy of a shelf may be, which holds what other gateways entered."""
LOCAL_VECTORS = 32_768
"""Over all shelves, in this process."""
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


@dataclass(frozen=True, slots=True)
class _Entered:
    """A question that was answered, as the store has it."""

    answer_key: bytes
    circle: bytes
    vector: Vector

    def to_bytes(self) -> bytes:
        return self.answer_key + self.circle + self.vector.astype(np.float16).tobytes()


@dataclass(slots=True)
class _Shelf:
    read_at: float
    entered: dict[str, _Entered] = field(default_factory=dict)
    """By place."""

    def of(self, circle: bytes) -> list[_Entered]:
        return [e for e in self.entered.values() if e.circle == circle]


def _nearest(entered: list[_Entered], vector: Vector) -> Near | None:
    known = [e for e in entered if e.vector.shape == vector.shape]
    if not known:
        return None
    cosines = np.stack([e.vector for e in known]) @ vector
    best = int(np.argmax(cosines))
    return Near(known[best].answer_key.hex(), float(cosines[best]))


class NearQuestions:
    """Finds and enters questions of one model.

    Args:
        min_similarity: the cosine from which on two questions count as one.
        kept: places of a shelf.
    """

    def __init__(
        self, store: StateStore, embeddings: Embeds, min_similarity: float, kept: int, model: str
    ) -> None:
        self._store, self._embeddings, self._min_similarity = store, embeddings, min_similarity
        self._kept, self._model = kept, model
        self._shelves: OrderedDict[str, _Shelf] = OrderedDict()
        self._entering: set[asyncio.Task[None]] = set()

    async def find(self, asked: Asked, relevant: dict[str, Any]) -> Near | None:
        """The nearest question that is near enough."""
        if (split := _split(asked, relevant)) is None:
            return None
        text, circle = split
        entered = (await self._shelf(self._group(circle))).of(circle)
        if not entered or (vector := await self._embeddings.embed(text, asked.within_s)) is None:
            return None
        found = _nearest(entered, vector)
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

    async def _enter(self, text: str, circle: bytes, answer_key: bytes, ttl_s: float) -> None:
        vector = await self._embeddings.embed(text, 60.0)
        if vector is None:
            return
        place, group = str(int.from_bytes(answer_key[:8], "big") % self._kept), self._group(circle)
        entered = _Entered(answer_key, circle, vector)
        if group in self._shelves:
            self._shelves[group].entered[place] = entered
        try:
            await self._store.put(group, place, entered.to_bytes(), ttl_s=ttl_s)
        except StateStoreUnavailable:
            return

    async def _shelf(self, group: str) -> _Shelf:
        known, now = self._shelves.get(group), monotonic()
        if known is None or now - known.read_at > REFRESH_S:
            try:
                raws = await self._store.scan(group)
                known = _Shelf(
                    now, {place: e for place, raw in raws.items() if (e := _read(raw)) is not None}
                )
            except StateStoreUnavailable:
                known = known or _Shelf(now)
            self._shelves[group] = known
        self._shelves.move_to_end(group)
        self._keep_bounds()
        return known

    def _keep_bounds(self) -> None:
        """Forgets the shelves that were not asked for the longest; the one just asked for stays."""
        held = sum(len(shelf.entered) for shelf in self._shelves.values())
        while held > LOCAL_VECTORS and len(self._shelves) > 1:
            held -= len(self._shelves.popitem(last=False)[1].entered)

    def _group(self, circle: bytes) -> str:
        return f"questions:{self._model}:{circle[0] % SHELVES}"

    async def close(self) -> None:
        """Waits a little for what is being entered."""
        if self._entering:
            _, late = await asyncio.wait(self._entering, timeout=0.5)
            for task in late:
                task.cancel()


def _split(asked: Asked, relevant: dict[str, Any]) -> tuple[str, bytes] | None:
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
    return text, sha256(circle).digest()[:CIRCLE_BYTES]


def _read(raw: bytes) -> _Entered | None:
    head = KEY_BYTES + CIRCLE_BYTES
    if len(raw) <= head or (len(raw) - head) % 2:
        return None
    vector = np.frombuffer(raw[head:], dtype=np.float16).astype(np.float32)
    length = float(np.linalg.norm(vector))
    if not np.isfinite(length) or length == 0.0:
        return None
    return _Entered(raw[:KEY_BYTES], raw[KEY_BYTES:head], vector / np.float32(length))
