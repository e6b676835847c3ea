"""A store inside one process: for tests, and for a gateway that shares nothing."""

import time
from collections.abc import Callable


class MemoryStateStore:
    """Values live until their time is over; `now` is in seconds and need only be steady."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._groups: dict[str, dict[str, tuple[bytes, float]]] = {}
        self._prune_at_size = 1024
        self._size = 0

    async def get(self, group: str, key: str) -> bytes | None:
        value, expires_at = self._groups.get(group, {}).get(key, (None, 0.0))
        return value if expires_at > self._now() else None

    async def put(
        self, group: str, key: str, value: bytes, *, ttl_s: float, only_if_absent: bool = False
    ) -> bool:
        if only_if_absent and await self.get(group, key) is not None:
            return False
        entries = self._groups.setdefault(group, {})
        self._size += key not in entries
        entries[key] = (value, self._now() + ttl_s)
        if self._size >= self._prune_at_size:
            self._prune()
        return True

    async def delete(self, group: str, key: str) -> None:
        if self._groups.get(group, {}).pop(key, None) is not None:
            self._size -= 1

    async def scan(self, group: str) -> dict[str, bytes]:
        now = self._now()
        return {
            k: value for k, (value, expires_at) in self._groups.get(group, {}).items() if expires_at > now
        }

    async def close(self) -> None:
        self._groups.clear()
        self._size = 0

    def _prune(self) -> None:
        # Run each time the store has doubled, so that a put costs the same on average however large it grows.
        now = self._now()
        for entries in self._groups.values():
            for key in [k for k, (_, expires_at) in entries.items() if expires_at <= now]:
                del entries[key]
        self._size = sum(len(entries) for entries in self._groups.values())
        self._prune_at_size = max(1024, 2 * self._size)
