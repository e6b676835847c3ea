"""What tests of many folders share: processes that they start and must end, free ports, and patience."""

import asyncio
from collections.abc import Awaitable, Callable

from loadtests.processes import EngineProcess, ServerProcess, free_port

__all__ = ["EngineProcess", "ServerProcess", "eventually", "free_port"]


async def eventually(condition: Callable[[], Awaitable[object]], within_s: float = 30.0) -> None:
    """Returns once the condition holds; raises TimeoutError when it does not within `within_s`."""
    async with asyncio.timeout(within_s):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)
