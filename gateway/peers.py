"""What the gateways of one model tell each other of their ladders, through the store, each under a short lease.

Without the store, or with one that is slow, a gateway is alone: its word is its own until the others are heard again.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import time
from typing import Any
from uuid import uuid4

from gateway.policy.agreement import Peer, Voice
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import Record

HEARD_FOR_S = 2.0
"""How long a gateway's word counts when nothing new is heard of it."""


@dataclass(frozen=True, slots=True)
class PeerRecord(Record):
    """One gateway's word on each tier."""

    gateway: str
    since: float
    voices: dict[str, dict[str, Any]]


class Peers:
    """The gateways of one model, this one among them."""

    def __init__(self, model: str, store: StateStore) -> None:
        self._group, self._store = f"ladder_peers:{model}", store
        self.me, self._since = uuid4().hex, time()
        self._heard: dict[str, list[Peer]] = {}
        self._heard_at = float("-inf")
        self.count = 0
        """Others that are heard."""

    async def exchange(self, voices: Mapping[str, Voice], now: float) -> None:
        """Tells and listens, once. `now` is monotonic."""
        record = PeerRecord(self.me, self._since, {tier: asdict(voice) for tier, voice in voices.items()})
        try:
            await self._store.put(self._group, self.me, record.to_bytes(), ttl_s=HEARD_FOR_S)
            found = await self._store.scan(self._group)
        except StateStoreUnavailable:
            return
        records = [r for r in map(PeerRecord.from_bytes, found.values()) if r is not None]
        self._take([r for r in records if r.gateway != self.me], now)

    def _take(self, records: list[PeerRecord], now: float) -> None:
        self._heard, self._heard_at, self.count = {}, now, len(records)
        for record in records:
            for tier, fields in record.voices.items():
                voice = _voice(fields)
                if voice is not None:
                    self._heard.setdefault(tier, []).append(Peer(record.gateway, record.since, voice))

    def of(self, tier: str, now: float) -> list[Peer]:
        """The others' words on a tier; none when they are too old."""
        if now - self._heard_at > HEARD_FOR_S:
            self.count = 0
            return []
        return self._heard.get(tier, [])

    def myself(self, voice: Voice) -> Peer:
        return Peer(self.me, self._since, voice)


def _voice(fields: dict[str, Any]) -> Voice | None:
    """None for what another version of Graceway says that this one doesn't understand."""
    try:
        return Voice(**fields)
    except TypeError:
        return None
