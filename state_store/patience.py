"""How long a call to a store may take: counted in turns of the event loop's timer, not in time alone.

A loop that is busy for 60 ms has left an answer unread, perhaps, and the store is not to blame. So a limit is a number
of short ticks, each armed only when the one before has fired: a stall, however long, counts as one of them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from state_store.protocol import StateStoreUnavailable

T = TypeVar("T")
TICKS = 5
PATIENCE_S = 2.0
"""How long those wait for a store who have the time: at the end of a life, or for somebody who reads."""
AGAIN_AFTER_S = 0.05


async def patiently(verb: Callable[[], Awaitable[T]], within_s: float = PATIENCE_S) -> T:
    """What a verb says, asked again while the store gives no answer.

    Raises:
        StateStoreUnavailable: it gave none within `within_s` seconds.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + within_s
    while True:
        try:
            return await verb()
        except StateStoreUnavailable:
            if loop.time() >= until:
                raise
        await asyncio.sleep(AGAIN_AFTER_S)


@asynccontextmanager
async def within(limit_s: float) -> AsyncIterator[None]:
    """Raises TimeoutError in the block once `limit_s` is over, as far as the loop has been there to notice an answer."""
    async with asyncio.timeout(None) as timeout:
        clock = _Ticks(timeout, limit_s / TICKS)
        try:
            yield
        finally:
            clock.stop()


class _Ticks:
    """Ends a timeout's block with the last of its ticks."""

    def __init__(self, timeout: asyncio.Timeout, tick_s: float) -> None:
        self._timeout, self._tick_s, self._left = timeout, tick_s, TICKS
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(tick_s, self._tick)

    def _tick(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._tick_s, self._tick)
        else:
            self._timeout.reschedule(self._loop.time())

    def stop(self) -> None:
        self._timer.cancel()
