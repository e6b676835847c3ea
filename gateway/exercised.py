"""When each tier of a model was last exercised, by a drill or by traffic: kept here, and left in the store for others and
for later."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import time

from gateway.beside import Beside
from gateway.policy.proof import Drilled, Proof, proof
from gateway.shares import TierShares
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.records import Record

EVERY_S = 2.0
TOLD_AGAIN_S = 60.0
"""How old the store's word on traffic may get."""
KEPT_S = 90 * 86_400.0


@dataclass(frozen=True, slots=True)
class ExerciseRecord(Record):
    """One tier's last drill (`passed` or `failed`) or traffic (`served`). `at` is Unix time."""

    at: float
    verdict: str
    detail: str = ""


class Exercised(Beside):
    """One model's tiers. Without the store, what happened here is still known, and told when it is back."""

    def __init__(
        self, model: str, store: StateStore, shares: TierShares, proven_for_s: Callable[[], float]
    ) -> None:
        self._group, self._store = f"exercised:{model}", store
        self._shares, self._proven_for_s = shares, proven_for_s
        self._known: dict[str, ExerciseRecord] = {}
        """By `drill/TIER` and `traffic/TIER`."""
        self._untold: dict[str, ExerciseRecord] = {}
        self._seen: dict[str, int] = {}

    async def _run(self) -> None:
        while True:
            await self.exchange(time())
            await asyncio.sleep(EVERY_S)

    def drilled(self, tier: str, passed: bool, detail: str, wall: float) -> None:
        self._note(f"drill/{tier}", ExerciseRecord(wall, "passed" if passed else "failed", detail))

    def of(self, tier: str, wall: float) -> Proof:
        """What is known of a tier at that Unix time."""
        self._note_traffic(wall)
        drill, traffic = self._known.get(f"drill/{tier}"), self._known.get(f"traffic/{tier}")
        drilled = None if drill is None else Drilled(drill.at, drill.verdict == "passed", drill.detail)
        return proof(drilled, None if traffic is None else traffic.at, wall, self._proven_for_s())

    async def exchange(self, wall: float) -> None:
        """Notes who has served, tells the store what is new, and hears what others know."""
        self._note_traffic(wall)
        try:
            for key, record in list(self._untold.items()):
                await self._store.put(self._group, key, record.to_bytes(), ttl_s=KEPT_S)
                if self._untold.get(key) is record:
                    del self._untold[key]
            found = await self._store.scan(self._group)
        except StateStoreUnavailable:
            return
        for key, raw in found.items():
            told = ExerciseRecord.from_bytes(raw)
            if told is not None and (key not in self._known or told.at > self._known[key].at):
                self._known[key] = told

    def _note_traffic(self, wall: float) -> None:
        for (kind, tier), count in list(self._shares.totals.items()):
            if kind != "tier" or count == self._seen.get(tier):
                continue
            self._seen[tier] = count
            known = self._known.get(f"traffic/{tier}")
            if known is None or wall - known.at >= TOLD_AGAIN_S:
                self._note(f"traffic/{tier}", ExerciseRecord(wall, "served"))

    def _note(self, key: str, record: ExerciseRecord) -> None:
        self._known[key] = self._untold[key] = record
