"""Runs a command to its end such that Ctrl-C and SIGTERM end it in order: what it started, it ends."""

import asyncio
import signal
from collections.abc import Coroutine

import uvloop

EXIT_INTERRUPTED = 130


def run_to_end(main: Coroutine[object, object, int]) -> int:
    """The command's exit status; 130 where a signal ended it."""
    status: int = uvloop.run(_ended_by_signals(main))
    return status


async def _ended_by_signals(main: Coroutine[object, object, int]) -> int:
    task = asyncio.ensure_future(main)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED
