"""One trial: steady load on a fleet, a fault in it, perhaps its healing, and what the clients met."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import count

from loadtests.client import PATIENCE_S, Question, Record, ask, complaint, open_loop, poisson
from loadtests.fleet import MODEL, Fleet

Act = Callable[[Fleet], Awaitable[None]]
TTFT_SLO_S = 1.0
WARM_UPS = 8


async def nothing(fleet: Fleet) -> None:
    """No fault, or no healing."""


@dataclass(frozen=True, slots=True)
class Load:
    """Open-loop Poisson load of streamed chats."""

    rate_per_s: float = 8.0
    duration_s: float = 20.0
    tokens: int = 50
    leaving_share: float = 0.0
    seed: int = 1
    patience_s: float = PATIENCE_S

    def questions(self, rng: random.Random) -> Iterator[Question]:
        for number in count():
            messages = ({"role": "user", "content": f"question {number} of run {self.seed}"},)
            leaves = 5 if rng.random() < self.leaving_share else None
            yield Question(messages, self.tokens, leaves_after_tokens=leaves)


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it. All times are seconds after the load began."""

    records: tuple[Record, ...]
    begun_at: float
    fault_s: float
    heal_s: float | None
    replicas: tuple[str, ...]

    def due_s(self, record: Record) -> float:
        return record.due_at - self.begun_at

    def staying(self) -> list[Record]:
        """The requests whose client did not mean to hang up."""
        return [record for record in self.records if record.question.leaves_after_tokens is None]

    @property
    def share_in_time(self) -> float:
        staying = self.staying()
        return sum(record.is_in_time(TTFT_SLO_S) for record in staying) / len(staying)

    @property
    def share_whole(self) -> float:
        staying = self.staying()
        return sum(record.is_whole for record in staying) / len(staying)

    @property
    def share_degraded(self) -> float:
        return sum("x-degraded" in record.headers for record in self.records) / len(self.records)

    @property
    def max_gap_s(self) -> float:
        return max(record.max_gap_s for record in self.staying())

    @property
    def max_lag_s(self) -> float:
        return max(record.lag_s for record in self.records)

    @property
    def lost(self) -> int:
        return sum(record.difference().lost for record in self.records)

    @property
    def repeated(self) -> int:
        return sum(record.difference().repeated for record in self.records)

    def wrong(self) -> list[Record]:
        """Answers with tokens that are not the model's."""
        return [record for record in self.records if record.difference().divergent]

    def silent_ends(self) -> list[Record]:
        """Neither brought to an end nor declared failed: what the contract forbids."""
        return [record for record in self.staying() if not (record.is_ended or record.is_declared_failure)]

    def complaints(self) -> list[dict[str, object]]:
        """Every request that was not whole and in time, in detail."""
        late = [record for record in self.staying() if not record.is_in_time(TTFT_SLO_S)]
        return [complaint(record, self.begun_at) for record in late]

    def served_by(self, number: int) -> list[float]:
        """When the requests were due whose answer began at this replica."""
        name = self.replicas[number]
        return sorted(
            self.due_s(record)
            for record in self.records
            if _names(record.headers.get("x-served-replica", ""), name) and record.token_times
        )


def _names(header: str, url: str) -> bool:
    return bool(header) and url.removeprefix("http://") in header


async def warm_up(fleet: Fleet) -> None:
    """The first requests of a process are its slowest, and no front is judged by them."""
    now = asyncio.get_running_loop().time()
    for number in range(WARM_UPS):
        question = Question(({"role": "user", "content": f"warm-up {number}"},), 4)
        await ask(fleet.urls[number % len(fleet.urls)], MODEL, question, now)


async def run_trial(
    fleet: Fleet, load: Load, fault: Act, fault_s: float, heal: Act, heal_s: float | None
) -> Trial:
    """Runs the load to its end, with the fault and its healing in their places."""
    rng = random.Random(load.seed)
    offsets = poisson(load.rate_per_s, load.duration_s, rng)
    begun_at = asyncio.get_running_loop().time() + 0.1
    acts = [asyncio.create_task(_at(begun_at + fault_s, fault, fleet))]
    if heal_s is not None:
        acts.append(asyncio.create_task(_at(begun_at + heal_s, heal, fleet)))
    records = await open_loop(fleet.urls, MODEL, load.questions(rng), offsets, begun_at, load.patience_s)
    await asyncio.gather(*acts)
    urls = tuple(replica.url for replica in fleet.replicas)
    return Trial(tuple(records), begun_at, fault_s, heal_s, urls)


async def _at(when: float, act: Act, fleet: Fleet) -> None:
    await asyncio.sleep(max(0.0, when - asyncio.get_running_loop().time()))
    await act(fleet)
