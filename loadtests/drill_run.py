"""One run of a drill's load on one system, with the fault and its healing in their places or without them."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp

from loadtests.client import Question, Record, ask
from loadtests.drill_observed import Metrics, Observed, Outcome, Scrape, parse_metrics
from loadtests.drill_plan import Abort, Drill
from loadtests.judgement import Verify, judged

SCRAPE_S = 0.5
ANSWER_WITHIN_S = 25.0
REST_WITHIN_S = 5.0
Do = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Target:
    """A system under load. `fault` and `heal` are None in a control."""

    urls: tuple[str, ...]
    model: str
    verify: Verify
    still_running: Callable[[], Awaitable[float | None]]
    fault: Do | None = None
    heal: Do | None = None
    replicas: tuple[str, ...] = ()
    fronts: tuple[str, ...] = ()


async def observe(target: Target, drill: Drill, seed: int) -> Observed:
    """The whole run. However it ends, what the fault did is healed."""
    run = _Run(target, drill.abort)
    asked = drill.questions(seed, with_surge=target.fault is not None)
    notes = await run.to_the_end(asked, drill.fault_s, drill.heal_s)
    return Observed(
        outcomes=tuple(run.outcomes),
        scrapes=tuple(run.scrapes),
        fault_s=drill.fault_s,
        heal_s=drill.heal_s,
        replicas=target.replicas,
        fronts=target.fronts,
        still_running=await _until_rest(target),
        notes=notes,
    )


class _Run:
    """The load under way, and what is seen of it."""

    def __init__(self, target: Target, abort: Abort) -> None:
        self._target = target
        self._abort = abort
        self._aborted = asyncio.Event()
        self._begun_at = 0.0
        self.outcomes: list[Outcome] = []
        self.scrapes: list[Scrape] = []

    async def to_the_end(
        self, asked: Sequence[tuple[float, Question]], fault_s: float, heal_s: float
    ) -> tuple[str, ...]:
        """What there is to say of how it went."""
        self._begun_at = asyncio.get_running_loop().time() + 0.1
        asking = asyncio.create_task(self._ask_all(asked))
        acting = asyncio.create_task(self._act(fault_s, heal_s))
        scraping = asyncio.create_task(self._scrape())
        aborting = asyncio.create_task(self._aborted.wait())
        try:
            await asyncio.wait({asking, aborting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(asking, scraping, aborting)
            if self._aborted.is_set() or not asking.done() or asking.cancelled():
                acting.cancel()
            (acted,) = await asyncio.gather(acting, return_exceptions=True)
        if isinstance(acted, Exception):
            raise acted
        return ("aborted: too much failed, the fault was healed at once",) if self._aborted.is_set() else ()

    async def _act(self, fault_s: float, heal_s: float) -> None:
        if self._target.fault is None:
            return
        await self._until(fault_s)
        try:
            await self._target.fault()
            await self._until(heal_s)
        finally:
            if self._target.heal is not None:
                await self._target.heal()

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, self._begun_at + at_s - asyncio.get_running_loop().time()))

    async def _ask_all(self, asked: Sequence[tuple[float, Question]]) -> None:
        async with asyncio.TaskGroup() as group:
            for number, (due_s, question) in enumerate(asked):
                await self._until(due_s)
                group.create_task(self._ask(number, due_s, question))

    async def _ask(self, number: int, due_s: float, question: Question) -> None:
        """At one address, or where that refuses the connection at the next, as a load balancer does."""
        urls = self._target.urls
        for turn in range(len(urls)):
            url = urls[(number + turn) % len(urls)]
            record = await ask(url, self._target.model, question, self._begun_at + due_s, ANSWER_WITHIN_S)
            if record.failure != "refused":
                break
        self._take(record, url, due_s)

    def _take(self, record: Record, url: str, due_s: float) -> None:
        judgement = judged(record, self._target.verify)
        self.outcomes.append(Outcome(record, judgement, url, due_s, record.ended_at - self._begun_at))
        since_s = self.outcomes[-1].ended_s - self._abort.window_s
        recent = [outcome for outcome in self.outcomes if outcome.ended_s >= since_s]
        failed = sum(outcome.judgement.is_failed for outcome in recent)
        if len(recent) >= self._abort.least and failed > self._abort.share * len(recent):
            self._aborted.set()

    async def _scrape(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SCRAPE_S)) as http:
            while True:
                metrics = await scraped(http, self._target.urls[-1])
                at_s = asyncio.get_running_loop().time() - self._begun_at
                self.scrapes.append(Scrape(at_s, metrics))
                await asyncio.sleep(SCRAPE_S)


async def _cancel(*tasks: asyncio.Task[object]) -> None:
    for task in tasks:
        task.cancel()
    for done in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(done, Exception):
            raise done


async def scraped(http: aiohttp.ClientSession, url: str) -> Metrics | None:
    """A gateway's metrics; None where it has none to give."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with http.get(f"{url}/metrics") as response:
            return parse_metrics(await response.text()) if response.status == 200 else None
    return None


async def _until_rest(target: Target) -> float | None:
    """What is still counted once nothing should be, as far as can be seen."""
    until = asyncio.get_running_loop().time() + REST_WITHIN_S
    least = math.inf
    while least > 0 and asyncio.get_running_loop().time() < until:
        running = await target.still_running()
        if running is None:
            return None
        least = min(least, running)
        await asyncio.sleep(0.1)
    return least
