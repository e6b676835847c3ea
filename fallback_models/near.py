"""Questions that were answered before, found by what they mean: their embeddings, kept in the state store as float16.

Only the last thing that the user says may differ. Everything else of a request (instructions, earlier turns, parameters)
and its tenant make up its *circle*, and questions are compared inside one circle alone. Circles share a fixed number of
shelves, each with a bounded number of places, and a question takes the place that its hash names: so nothing has to be
evicted, and nothing grows with the number of conversations.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass
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


class _Shelf:
    """A copy of one shelf, by place; with each circle's vectors side by side once they are asked for."""

    def __init__(self, read_at: float, entered: dict[str, _Entered]) -> None:
        self.read_at, self._entered = read_at, entered
        self._circles: dict[bytes, list[_Entered]] = {}
        self._matrices: dict[tuple[bytes, int], tuple[list[bytes], npt.NDArray[np.float32]]] = {}
        self._sort()

    def __len__(self) -> int:
        return len(self._entered)

    def _sort(self) -> None:
        self._circles.clear()
        self._matrices.clear()
        for entered in self._entered.values():
            self._circles.setdefault(entered.circle, []).append(entered)

    def enter(self, place: str, entered: _Entered) -> None:
        self._entered[place] = entered
        self._sort()

    def has(self, circle: bytes) -> bool:
        return circle in self._circles

    def nearest(self, circle: bytes, vector: Vector) -> Near | None:
        keys, matrix = self._matrix(circle, len(vector))
        if not keys:
            return None
        cosines = matrix @ vector
        best = int(np.argmax(cosines))
        return Near(keys[best].hex(), float(cosines[best]))

    def _matrix(self, circle: bytes, dimensions: int) -> tuple[list[bytes], npt.NDArray[np.float32]]:
        """Answer keys, and their vectors, shape `(questions, dimensions)`."""
        known = self._matrices.get((circle, dimensions))
        if known is None:
            entered = [e for e in self._circles.get(circle, ()) if len(e.vector) == dimensions]
            stacked = (
                np.stack([e.vector for e in entered]) if entered else np.empty((0, dimensions), np.float32)
            )
            known = self._matrices[circle, dimensions] = [e.answer_key for e in entered], stacked
        return known


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
        shelf = await self._shelf(self._group(circle))
        if not shelf.has(circle) or (vector := await self._embeddings.embed(text, asked.within_s)) is None:
            return None
        found = shelf.nearest(circle, vector)
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
            self._shelves[group].enter(place, entered)
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
                known = known or _Shelf(now, {})
            self._shelves[group] = known
        self._shelves.move_to_end(group)
        self._keep_bounds()
        return known

    def _keep_bounds(self) -> None:
        """Forgets the shelves that were not asked for the longest; the one just asked for stays."""
        held = sum(len(shelf) for shelf in self._shelves.values())
        while held > LOCAL_VECTORS and len(self._shelves) > 1:
            held -= len(self._shelves.popitem(last=False)[1])

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
