"""What one replica's prefix cache holds, told to the gateways in batches: what came and what went since the last one."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress

from replicas.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event, Hash, KvEvents, Missed
from state_store.prefix_news import TOKEN_BLOCK, Held, to_bytes, token_chain
from state_store.protocol import StateStore, StateStoreUnavailable

TELL_S = 0.2
BATCH_BLOCKS = 256
MAX_BATCHES = 2048


class HeldBlocks:
    """The blocks of one engine: its own names for them, and the hashes that every process computes alike."""

    def __init__(self) -> None:
        self._blocks: dict[Hash, tuple[int, ...]] = {}
        self._added: dict[int, None] = {}
        self._removed: dict[int, None] = {}
        self._is_anew = True

    def __len__(self) -> int:
        """How many of the engine's blocks hold something."""
        return len(self._blocks)

    def take(self, events: Iterable[Event]) -> None:
        """Follows the engine."""
        for event in events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event.block_hashes)
            elif isinstance(event, AllBlocksCleared):
                self.clear()

    def clear(self) -> None:
        """The cache is empty, or nobody knows what is in it."""
        self._blocks.clear()
        self._added.clear()
        self._removed.clear()
        self._is_anew = True

    def news(self, replica: str) -> list[Held]:
        """What to tell of what has happened since this was last asked."""
        added, removed = list(self._added), list(self._removed)
        rounds = max(-(-len(added) // BATCH_BLOCKS), -(-len(removed) // BATCH_BLOCKS), int(self._is_anew))
        found = [
            Held(replica, _part(added, n), _part(removed, n), self._is_anew and n == 0) for n in range(rounds)
        ]
        self._added.clear()
        self._removed.clear()
        self._is_anew = False
        return found

    def _store(self, event: BlockStored) -> None:
        # What an adapter computed is nothing to those who don't use it; a block whose parent is unknown has no place.
        parent = self._blocks.get(event.parent_block_hash) if event.parent_block_hash is not None else (0,)
        if event.lora_name is not None or parent is None or event.block_size % TOKEN_BLOCK:
            return
        chain, per_block = (
            token_chain(event.token_ids, parent[-1] if parent else 0),
            event.block_size // TOKEN_BLOCK,
        )
        for number, name in enumerate(event.block_hashes):
            block = chain[number * per_block : (number + 1) * per_block]
            if len(block) == per_block:
                self._blocks[name] = block
                for part in block:
                    self._removed.pop(part, None)
                    self._added[part] = None

    def _remove(self, names: Iterable[Hash]) -> None:
        for name in names:
            for part in self._blocks.pop(name, ()):
                self._added.pop(part, None)
                self._removed[part] = None


def _part(hashes: Sequence[int], number: int) -> tuple[int, ...]:
    return tuple(hashes[number * BATCH_BLOCKS : (number + 1) * BATCH_BLOCKS])


class HeldBlocksTeller:
    """Follows an engine's events and tells them, for as long as `run` runs."""

    def __init__(self, replica: str, topic: str, endpoint: str, store: StateStore) -> None:
        self._replica, self._topic, self._store = replica, topic, store
        self._events = KvEvents(endpoint)
        self.held = HeldBlocks()
        self._untold: list[Held] = []

    async def run(self) -> None:
        """For ever."""
        following = asyncio.create_task(self._follow(), name=f"{self._replica} kv events")
        try:
            while True:
                await asyncio.sleep(TELL_S)
                with suppress(StateStoreUnavailable):
                    await self._tell()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            self._events.close()

    def begin(self) -> None:
        """A new engine starts, with an empty cache."""
        self.held.clear()
        self._events.begin()

    async def _follow(self) -> None:
        while True:
            try:
                async for batch in self._events.batches():
                    self.held.take(batch)
            except Missed:
                self.held.clear()

    async def _tell(self) -> None:
        if len(self._untold) < MAX_BATCHES:
            self._untold += self.held.news(self._replica)
        while self._untold:
            await self._store.append(self._topic, to_bytes(self._untold[0]), max_values=MAX_BATCHES)
            del self._untold[0]
