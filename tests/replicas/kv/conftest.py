"""A Redis for each module, and what both sides of the connector need on it for each test."""

import pytest

from tests.redis_server import RedisServer, embedded_redis, redis_server
from tests.replicas.kv.rig import Rig

__all__ = ["embedded_redis", "redis_server"]


@pytest.fixture
def rig(redis_server: RedisServer) -> Rig:
    return Rig(redis_server)
