"""From a `state_store.url` of the config to a store."""

from urllib.parse import urlsplit

from state_store.guarded import GuardedStateStore
from state_store.memory import MemoryStateStore
from state_store.protocol import StateStore
from state_store.redis import RedisStateStore

_LATER = ("redis+sentinel", "redis+cluster")


def open_state_store(url: str, *, timeout_s: float = 0.05) -> StateStore:
    """A store for `memory`, `redis://`, `rediss://` or `unix://`; the remote ones behind a breaker.

    Opens no connection yet, so a server that is down is no error. `timeout_s` bounds each call. Raises
    ValueError for any other URL; `embedded` is not one, its server's own address is.
    """
    if url == "memory":
        return MemoryStateStore()
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss", "unix"):
        return GuardedStateStore(RedisStateStore(url, timeout_s=timeout_s))
    if scheme in _LATER:
        raise ValueError(f"state_store.url: {scheme}:// is not supported yet; use redis:// or rediss://")
    raise ValueError(f"state_store.url: {url!r} is none of memory, redis://, rediss://, unix://")
