"""What runs beside the requests: one task, from `start` to `stop`."""

import asyncio
from abc import ABC, abstractmethod


class Beside(ABC):
    """Something that goes on for as long as its owner lives."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=type(self).__name__)

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    async def stop(self) -> None:
        """Returns when it has ended; at once when it never began."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @abstractmethod
    async def _run(self) -> None:
        """For ever."""
