"""What operators have set by hand, until it expires: kept here, and left in the store so that every gateway heeds it."""

from dataclasses import dataclass

from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import Record


@dataclass(frozen=True, slots=True)
class Override(Record):
    """A tier's share by an operator's word. `until` is Unix time."""

    share: float
    reason: str
    until: float


class Overrides:
    """One model's overrides by tier. Without the store they hold for this gateway alone, and are told when it is back."""

    def __init__(self, model: str, store: StateStore) -> None:
        self._group, self._store = f"ladder:{model}", store
        self._held: dict[str, Override] = {}
        self._untold: dict[str, Override | None] = {}

    def of(self, tier: str, wall: float) -> Override | None:
        """The override in force at that Unix time."""
        found = self._held.get(tier)
        return found if found is not None and wall < found.until else None

    def set(self, tier: str, override: Override | None) -> None:
        """Sets or, with None, ends an override: here at once, elsewhere with the next exchange."""
        self._untold[tier] = override
        if override is None:
            self._held.pop(tier, None)
        else:
            self._held[tier] = override

    def tiers(self) -> list[str]:
        return list(self._held)

    async def exchange(self, wall: float) -> None:
        """Tells the store what is new, and takes over what it holds. Without it nothing changes."""
        try:
            for tier, override in list(self._untold.items()):
                await self._put(tier, override, wall)
                if self._untold.get(tier) is override:
                    del self._untold[tier]
            found = await self._store.scan(self._group)
        except StateStoreUnavailable:
            return
        records = {tier: Override.from_bytes(raw) for tier, raw in found.items()}
        untold = {t: o for t, o in self._untold.items() if o is not None}
        self._held = {t: r for t, r in records.items() if r is not None and t not in self._untold} | untold

    async def _put(self, tier: str, override: Override | None, wall: float) -> None:
        if override is None or override.until <= wall:
            await self._store.delete(self._group, tier)
        else:
            await self._store.put(self._group, tier, override.to_bytes(), ttl_s=override.until - wall)
