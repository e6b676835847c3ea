"""A store inside one process: for tests, and for a gateway that shares nothing."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from state_store.script import Fields, Ran, Script


class MemoryStateStore:
    """Values live until their time is over; `now` is in seconds and need only be steady."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._groups: dict[str, dict[str, tuple[bytes, float]]] = {}
        self._entries: dict[tuple[str, str], tuple[Fields, float]] = {}
        self._topics: dict[str, deque[tuple[int, bytes]]] = {}
        self._appended = 0
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

    async def run(
        self, script: Script, group: str, key: str, arguments: Sequence[bytes | str], *, ttl_s: float
    ) -> Ran:
        fields, expires_at = self._entries.get((group, key), ({}, 0.0))
        if expires_at <= self._now():
            fields = {}
        self._size += (group, key) not in self._entries
        words = [a.encode() if isinstance(a, str) else a for a in arguments]
        values = script.python(fields, words)
        self._entries[group, key] = (fields, self._now() + ttl_s)
        if self._size >= self._prune_at_size:
            self._prune()
        return Ran(values)

    async def append(self, topic: str, value: bytes, *, max_values: int) -> str:
        values = self._topics.setdefault(topic, deque())
        self._appended += 1
        values.append((self._appended, value))
        while len(values) > max_values:
            values.popleft()
        return str(self._appended)

    async def read(self, topic: str, after: str = "") -> list[tuple[str, bytes]]:
        place = int(after or 0)
        behind = ((str(n), value) for n, value in self._topics.get(topic, ()) if n > place)
        return list(islice(behind, 1000))

    async def close(self) -> None:
        self._groups.clear()
        self._entries.clear()
        self._topics.clear()
        self._size = 0

    def _prune(self) -> None:
        # Run each time the store has doubled, so that a put costs the same on average however large it grows.
        now = self._now()
        for entries in self._groups.values():
            for key in [k for k, (_, expires_at) in entries.items() if expires_at <= now]:
                del entries[key]
        for place in [p for p, (_, expires_at) in self._entries.items() if expires_at <= now]:
            del self._entries[place]
        self._size = len(self._entries) + sum(len(entries) for entries in self._groups.values())
        self._prune_at_size = max(1024, 2 * self._size)
