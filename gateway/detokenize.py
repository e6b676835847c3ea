"""The text of token ids, asked of a replica: vLLM's `/detokenize`."""

import asyncio
from collections.abc import Sequence

import orjson

from gateway.failure import ExchangeFailed
from gateway.http_client import request_bytes
from gateway.replica import Replica

TIMEOUT_S = 0.3


async def detokenize(replica: Replica, ids: Sequence[int]) -> str | None:
    """The text, or None from a replica that can't tell (or not in time)."""
    body = orjson.dumps({"model": replica.place.served_model, "tokens": list(ids)})
    key = replica.place.api_key
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with asyncio.timeout(TIMEOUT_S):
            connection = await replica.pool.connect(TIMEOUT_S)
            try:
                connection.send(request_bytes(replica.origin, "/detokenize", body, headers))
                status = await connection.head()
                answer = orjson.loads(await connection.read_all(1 << 20))
            finally:
                connection.finish()
        return str(answer["prompt"]) if status == 200 else None
    except (ExchangeFailed, TimeoutError, orjson.JSONDecodeError, KeyError, TypeError):
        return None
