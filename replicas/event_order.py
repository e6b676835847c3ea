"""In which order an engine's numbered messages count, those that came by themselves and those that were asked for again.

Each counts once and none is left out: what came after a gap waits for what fills it. Knows nothing of sockets and clocks.
"""

from collections import deque


class Missed(Exception):  # noqa: N818
    """Events were lost for good, so nobody knows any more what the cache holds."""


class EventOrder:
    """What has been taken of one engine's messages, and what waits. Every method gives the messages that are due now."""

    def __init__(self) -> None:
        self.expected = 0
        """The number of the next message."""
        self.is_asking = False
        """Whether those from `expected` on were asked for, and may still come."""
        self._lacked_when_asked = False
        self._has_begun = False
        self._last_live = -1
        self._waiting: deque[tuple[int, bytes]] = deque()

    @property
    def lacks(self) -> bool:
        """Whether something waits for messages that did not come."""
        return bool(self._waiting)

    def ask(self) -> None:
        """Those from `expected` on are asked for."""
        self.is_asking, self._lacked_when_asked = True, self.lacks

    def live(self, number: int, message: bytes) -> list[bytes]:
        """One that came by itself. Raises Missed where the engine has begun to count anew."""
        if number <= self._last_live:
            raise Missed(f"event {number} came after {self._last_live}")
        self._last_live = number
        self._waiting.append((number, message))
        return self._due()

    def again(self, number: int, message: bytes) -> list[bytes]:
        """One that was asked for. Raises Missed where the engine has forgotten what is lacking."""
        if number < self.expected:
            return []
        if self._has_begun and number != self.expected:
            raise Missed(f"event {self.expected} is forgotten, {number} is the first that is not")
        # What was before the first one is of the past: it says nothing of blocks that came later.
        self._take(number)
        return [message]

    def over(self) -> list[bytes]:
        """Nothing more will come of what was asked for. Raises Missed where what was lacking then is lacking still."""
        self.is_asking = False
        due = self._due()
        if not self._waiting or not self._lacked_when_asked:
            return due
        if self._has_begun:
            raise Missed(f"event {self.expected} never came, {self._waiting[0][0]} did")
        self.expected = self._waiting[0][0]
        return self._due()

    def _due(self) -> list[bytes]:
        due = []
        while self._waiting and self._waiting[0][0] <= self.expected:
            number, message = self._waiting.popleft()
            if number == self.expected:
                self._take(number)
                due.append(message)
        return due

    def _take(self, number: int) -> None:
        self.expected, self._has_begun = number + 1, True
