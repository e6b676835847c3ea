"""Session bindings: which replica holds a session's state, pinned in the store so that every gateway sends it there.

The store is the memory that gateways share, not a condition for serving: without it a gateway goes by what it knows and
by rendezvous hashing, which all of them compute alike.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic

import orjson

from state_store.protocol import StateStore, StateStoreUnavailable

TTL_S = 3600.0
FRESH_S = 5.0
"""How long a gateway trusts its own copy before it asks the store again."""
KNOWN_SESSIONS = 100_000

_NONE: Mapping[str, str] = {}


@dataclass(slots=True)
class _Known:
    as_of: float
    replicas: dict[str, str] = field(default_factory=dict)


class Sessions:
    """Bindings of one model's sessions: replica by tier."""

    def __init__(self, model: str, store: StateStore) -> None:
        self._group, self._store = f"sessions:{model}", store
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._writes: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._known)

    async def find(self, session: str) -> Mapping[str, str]:
        """The session's replica by tier; empty for a new one."""
        if not session:
            return _NONE
        known = self._known.get(session)
        if known is not None and monotonic() - known.as_of < FRESH_S:
            self._known.move_to_end(session)
            return known.replicas
        return await self._read(session, known)

    async def _read(self, session: str, known: _Known | None) -> Mapping[str, str]:
        try:
            raw = await self._store.get(self._group, session)
        except StateStoreUnavailable:
            return known.replicas if known is not None else _NONE
        replicas = _bindings(raw)
        if replicas or known is None:
            return self._remember(session, replicas).replicas
        # The store was emptied: what this gateway knows is put back by the next turn's `bind`.
        return known.replicas

    def _remember(self, session: str, replicas: dict[str, str]) -> _Known:
        known = self._known[session] = _Known(monotonic(), replicas)
        self._known.move_to_end(session)
        while len(self._known) > KNOWN_SESSIONS:
            self._known.popitem(last=False)
        return known

    def bind(self, session: str, tier: str, replica: str, is_lost: bool) -> None:
        """Pins the session to a replica that served it, when it had none in this tier or that one `is_lost`."""
        if not session:
            return
        known = self._known.get(session) or self._remember(session, {})
        is_new = not known.replicas
        if known.replicas.get(tier) == replica or (tier in known.replicas and not is_lost):
            return
        known.replicas = {**known.replicas, tier: replica}
        task = asyncio.get_running_loop().create_task(self._write(session, known.replicas, is_new))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, session: str, replicas: Mapping[str, str], is_new: bool) -> None:
        try:
            raw = orjson.dumps(replicas)
            if not await self._store.put(self._group, session, raw, ttl_s=TTL_S, only_if_absent=is_new):
                # Another gateway was first: its binding is the one.
                self._known.pop(session, None)
        except StateStoreUnavailable:
            return

    async def close(self) -> None:
        """Waits for writes that are under way."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=1.0)


def _bindings(raw: bytes | None) -> dict[str, str]:
    if raw is None:
        return {}
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
