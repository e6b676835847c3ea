"""Embeddings of an OpenAI-compatible server, as long as it gives them quickly; else none."""

import asyncio

import numpy as np
import orjson

from fallback_models.near import Vector
from gateway.failure import ExchangeFailed
from gateway.http_client import ConnectionPool, Origin, request_bytes
from gateway.specs import NearSpec
from state_store.guarded import StoreBreaker

MAX_ANSWER_BYTES = 1 << 20
MAX_TEXT_CHARS = 8192


class Embeddings:
    """One server's embeddings. After a failure it is left alone for a while that grows."""

    def __init__(self, spec: NearSpec) -> None:
        self._spec, self._origin = spec, Origin.of(spec.url)
        self._pool = ConnectionPool(self._origin)
        self._breaker = StoreBreaker()

    async def embed(self, text: str, within_s: float) -> Vector | None:
        """The text's vector, of length 1."""
        if len(text) > MAX_TEXT_CHARS:
            return None
        time = asyncio.get_running_loop().time
        ticket = self._breaker.admit(time())
        if ticket is None:
            return None
        try:
            async with asyncio.timeout(min(self._spec.timeout_s, within_s)):
                vector = await self._ask(text)
        except (
            ExchangeFailed,
            TimeoutError,
            orjson.JSONDecodeError,
            KeyError,
            IndexError,
            TypeError,
            ValueError,
        ):
            self._breaker.fail(ticket, time())
            return None
        self._breaker.succeed(ticket)
        return vector

    async def _ask(self, text: str) -> Vector:
        spec = self._spec
        headers = {"authorization": f"Bearer {spec.api_key}"} if spec.api_key else {}
        body = orjson.dumps({"model": spec.served_model, "input": [text], "encoding_format": "float"})
        connection = await self._pool.connect(spec.timeout_s)
        try:
            connection.send(request_bytes(self._origin, "/v1/embeddings", body, headers))
            status = await connection.head()
            raw = await connection.read_all(MAX_ANSWER_BYTES)
        finally:
            connection.finish()
        if status != 200:
            raise ExchangeFailed.of_status(status)
        vector = np.asarray(orjson.loads(raw)["data"][0]["embedding"], dtype=np.float32)
        length = float(np.linalg.norm(vector))
        if vector.ndim != 1 or not np.isfinite(length) or length == 0.0:
            raise ValueError("no vector")
        return vector / np.float32(length)

    def close(self) -> None:
        """Drops its connections."""
        self._pool.close()
