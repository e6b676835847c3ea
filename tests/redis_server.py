"""A Redis for the tests of a module, as good as new before each of them."""

import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from redis import Redis

from state_store.embedded import EmbeddedRedis

_ROOT = Path(__file__).parents[1]


class RedisServer:
    """The server, and what a test opened on it."""

    def __init__(self, embedded: EmbeddedRedis) -> None:
        self._embedded = embedded
        self._opened = ExitStack()

    @property
    def url(self) -> str:
        return self._embedded.url

    @property
    def pid(self) -> int:
        return self._embedded.pid

    def at_end(self, close: Callable[[], None]) -> None:
        self._opened.callback(close)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def redis(self) -> Redis:
        """A plain client, for what only Redis itself can say or do."""
        redis = Redis.from_url(self.url)
        self.at_end(redis.close)
        return redis

    def reset(self) -> None:
        """Thaws, closes what the test opened, and forgets all."""
        self.thaw()
        self._opened.close()
        with Redis.from_url(self.url) as redis:
            redis.config_set("maxmemory", 256 << 20)
            redis.config_set("maxmemory-policy", "allkeys-lru")
            redis.flushall()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedded_redis() -> AsyncIterator[EmbeddedRedis]:
    embedded = EmbeddedRedis()
    await embedded.start()
    yield embedded
    await embedded.stop()


@pytest.fixture
def redis_server(embedded_redis: EmbeddedRedis) -> Iterator[RedisServer]:
    server = RedisServer(embedded_redis)
    yield server
    server.reset()


def documented_acl() -> list[str]:
    """What an ACL user is to be given."""
    rules = re.search(r"`(~graceway:\* [^`]*)`", (_ROOT / "docs" / "config.md").read_text())
    assert rules is not None
    return rules[1].split()
