"""What is left to a thread of its own: taken without waiting, dealt with later, and dropped and counted where too much waits."""

import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Backlog(ABC, Generic[Item]):
    """Takes items from `start` to `stop`.

    Args:
        name: the thread's.
        every_s: how often it looks.
        most: items that may wait.
    """

    def __init__(self, name: str, every_s: float, most: int) -> None:
        self._every_s, self._most = every_s, most
        self._waiting: deque[Item] = deque()
        self.dropped = 0
        """Items that came to nothing."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: Item) -> None:
        """Called from any thread; never waits."""
        if len(self._waiting) >= self._most:
            self.dropped += 1
        else:
            self._waiting.append(item)

    def stop(self, within_s: float) -> None:
        """Deals with what is left, if that can be done in time."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(within_s)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stopping.wait(self._every_s)
            self._work_off()
        self._end()

    @abstractmethod
    def _work_off(self) -> None:
        """Deals with what waits, on the thread."""

    def _end(self) -> None:
        """Lets go of what the thread held."""
