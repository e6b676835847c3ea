"""Measures how late an event loop runs what is due: the one sign that all of a gateway's requests share."""

import asyncio
from collections.abc import Callable
from time import perf_counter

EVERY_S = 0.25


class LoopLag:
    """Tells `take` the lag in seconds, four times a second."""

    def __init__(self, take: Callable[[float], None]) -> None:
        self._take = take
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="loop lag")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            due = perf_counter() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._take(max(0.0, perf_counter() - due))
