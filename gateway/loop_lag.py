"""Measures how late an event loop runs what is due: the one sign that all of a gateway's requests share."""

import asyncio
from collections.abc import Callable
from time import perf_counter

from gateway.beside import Beside

EVERY_S = 0.25


class LoopLag(Beside):
    """Tells `take` the lag in seconds, four times a second."""

    def __init__(self, take: Callable[[float], None]) -> None:
        self._take = take

    async def _run(self) -> None:
        while True:
            due = perf_counter() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._take(max(0.0, perf_counter() - due))
