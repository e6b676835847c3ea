"""Session bindings: which replica holds a session's state, pinned in the store so that every gateway sends it there.

The store is the memory that gateways share, not a condition for serving: without it a gateway goes by what it knows and
by rendezvous hashing, which all of them compute alike.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic

import orjson

from state_store.protocol import StateStore, StateStoreUnavailable

TTL_S = 3600.0
FRESH_S = 5.0
"""How long a gateway trusts its own copy before it asks the store again."""
RENEW_S = TTL_S / 4
"""How old a binding gets in the store before the session's next turn renews it."""
KNOWN_SESSIONS = 100_000
WRITE_AGAIN_S = (0.25, 0.5, 1.0, 2.0)
"""Pauses before a binding that the store did not take is written again."""

_NONE: Mapping[str, str] = {}


@dataclass(slots=True)
class _Known:
    as_of: float
    replicas: dict[str, str] = field(default_factory=dict)
    is_stored: bool = False
    """Whether the store has a binding of the session, as far as this gateway knows."""
    written_at: float = -inf
    """When this gateway last wrote it there."""


IsLost = Callable[[str, str], bool]


def _never(tier: str, replica: str) -> bool:
    return False


def _any_lost(known: _Known, is_lost: IsLost) -> bool:
    return any(is_lost(tier, replica) for tier, replica in known.replicas.items())


class Sessions:
    """Bindings of one model's sessions: replica by tier."""

    def __init__(self, model: str, store: StateStore) -> None:
        self._group, self._store = f"sessions:{model}", store
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._writes: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._known)

    async def find(self, session: str, is_lost: IsLost = _never) -> Mapping[str, str]:
        """The session's replica by tier; empty for a new one.

        Args:
            is_lost: whether a tier's replica is gone. A binding to one is read again: another gateway may have moved it.
        """
        if not session:
            return _NONE
        known = self._known.get(session)
        if known is not None and monotonic() - known.as_of < FRESH_S and not _any_lost(known, is_lost):
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
            written_at = known.written_at if known is not None else -inf
            return self._remember(session, _Known(monotonic(), replicas, bool(replicas), written_at)).replicas
        # The store was emptied: what this gateway knows is put back by the next turn's `bind`.
        known.is_stored, known.written_at = False, -inf
        return known.replicas

    def _remember(self, session: str, known: _Known) -> _Known:
        self._known[session] = known
        self._known.move_to_end(session)
        while len(self._known) > KNOWN_SESSIONS:
            self._known.popitem(last=False)
        return known

    def bind(self, session: str, tier: str, replica: str, is_lost: bool) -> None:
        """Pins the session to a replica that served it, when it had none in this tier or that one `is_lost`.

        A binding that the store has lost, never got or will soon forget is written again.
        """
        if not session:
            return
        now = monotonic()
        known = self._known.get(session) or self._remember(session, _Known(now))
        bound = known.replicas.get(tier)
        if bound is None or (is_lost and bound != replica):
            known.replicas = {**known.replicas, tier: replica}
        elif now - known.written_at < RENEW_S:
            return
        only_if_absent = not known.is_stored
        known.is_stored, known.written_at = True, now
        task = asyncio.get_running_loop().create_task(self._write(session, known, only_if_absent))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, session: str, known: _Known, only_if_absent: bool) -> None:
        """Writes a binding; again a few times when the store is away, as the session's next turn may be far off."""
        for pause_s in (*WRITE_AGAIN_S, None):
            if await self._put(session, known, only_if_absent) or pause_s is None:
                return
            await asyncio.sleep(pause_s)
            if known.written_at > -inf:
                # A later turn has seen to it.
                return

    async def _put(self, session: str, known: _Known, only_if_absent: bool) -> bool:
        """Whether the store took it, or has another gateway's."""
        raw = orjson.dumps(known.replicas)
        try:
            is_mine = await self._store.put(
                self._group, session, raw, ttl_s=TTL_S, only_if_absent=only_if_absent
            )
        except StateStoreUnavailable:
            known.is_stored, known.written_at = False, -inf
            return False
        known.is_stored, known.written_at = True, monotonic()
        if not is_mine:
            # Another gateway was first: its binding is the one.
            self._known.pop(session, None)
        return True

    async def close(self) -> None:
        """Waits a little for writes that are under way."""
        if self._writes:
            _, late = await asyncio.wait(self._writes, timeout=1.0)
            for task in late:
                task.cancel()


def _bindings(raw: bytes | None) -> dict[str, str]:
    if raw is None:
        return {}
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}
