"""From a `state_store.url` of the config to a store."""

from state_store.guarded import GuardedStateStore
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStore
from state_store.redis import RedisStateStore
from state_store.redis_url import parse_redis_url


def open_state_store(url: str, *, timeout_s: float | None = None) -> StateStore:
    """A store for `memory` or a Redis URL (`state_store.redis_url`); the remote ones behind breakers.

    Opens no connection yet, so a server that is down is no error. `timeout_s` bounds each call, where the URL's own
    limit should not. Raises ValueError for any other URL; `embedded` is not one, its server's own address is.
    """
    if url == "memory":
        return MemoryStateStore()
    try:
        return GuardedStateStore(RedisStateStore(parse_redis_url(url), timeout_s=timeout_s))
    except ValueError as error:
        raise ValueError(f"state_store.url: {error}") from error
