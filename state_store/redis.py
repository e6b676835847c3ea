"""The Redis backend: two kinds of keys per group, and no call that can outlast its timeout.

A value lives under `graceway:{group}:key` with Redis's own expiry, which alone decides whether it is alive.
The sorted set `graceway:{group}` lists a group's keys for `scan`; the braces are Redis's hash tag and keep a
group in one slot. Its scores only bound its size: they are the time after which an entry is garbage on any
clock, however wrong.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from state_store.protocol import StateStoreUnavailable

_CLOCK_SKEW_S = 3600.0


class RedisStateStore:
    """A store on one Redis server. Connects at the first call, `max_connections` times at most."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 0.05,
        max_connections: int = 16,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._timeout_s = timeout_s
        self._now = now
        # Its types allow for decoded answers, which this client never gives.
        self._redis: Any = Redis(connection_pool=_pool(url, timeout_s, max_connections))

    async def get(self, group: str, key: str) -> bytes | None:
        async with self._bounded("get"):
            value: bytes | None = await self._redis.get(value_key(group, key))
            return value

    async def put(
        self, group: str, key: str, value: bytes, *, ttl_s: float, only_if_absent: bool = False
    ) -> bool:
        now = self._now()
        ttl_ms = max(1, round(ttl_s * 1000))
        async with self._bounded("put"), self._redis.pipeline(transaction=False) as pipe:
            pipe.set(value_key(group, key), value, px=ttl_ms, nx=only_if_absent)
            pipe.zadd(_index_key(group), {key: now + ttl_s + _CLOCK_SKEW_S}, gt=True)
            pipe.zremrangebyscore(_index_key(group), "-inf", now)
            return bool((await pipe.execute())[0])

    async def delete(self, group: str, key: str) -> None:
        async with self._bounded("delete"), self._redis.pipeline(transaction=False) as pipe:
            pipe.delete(value_key(group, key))
            pipe.zrem(_index_key(group), key)
            await pipe.execute()

    async def scan(self, group: str) -> dict[str, bytes]:
        async with self._bounded("scan"):
            members: list[bytes] = await self._redis.zrange(_index_key(group), 0, -1)
            if not members:
                return {}
            keys = [member.decode() for member in members]
            values = await self._redis.mget([value_key(group, key) for key in keys])
            return {key: value for key, value in zip(keys, values, strict=True) if value is not None}

    async def close(self) -> None:
        async with self._bounded("close"):
            await self._redis.aclose()
            await self._redis.connection_pool.disconnect()

    @asynccontextmanager
    async def _bounded(self, verb: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as error:
            raise StateStoreUnavailable(
                f"{verb}: no answer within {self._timeout_s * 1000:.0f} ms"
            ) from error
        except (RedisError, OSError) as error:
            raise StateStoreUnavailable(f"{verb}: {error}") from error


def _pool(url: str, timeout_s: float, max_connections: int) -> BlockingConnectionPool:
    settings: dict[str, Any] = {
        # A call is tried once: whether to try again is the guard's decision, which knows how the last ones
        # went.
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "protocol": 2,
        # Saves two commands on every new connection.
        "driver_info": None,
    }
    return BlockingConnectionPool.from_url(
        url, max_connections=max_connections, timeout=timeout_s, **settings
    )


def _index_key(group: str) -> str:
    return f"graceway:{{{group}}}"


def value_key(group: str, key: str) -> str:
    """Where a group's value lies in Redis, for those that don't go through the store."""
    return f"graceway:{{{group}}}:{key}"
