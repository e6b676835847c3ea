"""What tests of many folders share: processes that they start and must end, free ports, and patience."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

from loadtests.processes import EngineProcess, ServerProcess

__all__ = ["EngineProcess", "ServerProcess", "eventually", "free_port"]


def free_port() -> int:
    """A port that was free a moment ago; where a server can bind port 0 itself, let it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def eventually(condition: Callable[[], Awaitable[object]], within_s: float = 30.0) -> None:
    """Returns once the condition holds; raises TimeoutError when it does not within `within_s`."""
    async with asyncio.timeout(within_s):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.01)
