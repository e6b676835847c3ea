"""A Redis for each module."""

from tests.redis_server import embedded_redis, redis_server

__all__ = ["embedded_redis", "redis_server"]
