"""The client connections of one process: how many there may be, how long each may take, and which go when it is full.

A connection is at one stage at a time, and each stage is a queue by the time since when; what is overdue stands in front,
so neither the watch nor a full house costs more the more connections there are.
"""

import asyncio
import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, Protocol, get_args

from gateway.specs import LimitsSpec

Stage = Literal["fresh", "head", "body", "busy", "idle"]
"""Nothing has come; half a head has; half a body has; an answer is under way; it waits for another request."""

LOOK_S = 0.25
_FIRST_TO_GO: tuple[Stage, ...] = ("fresh", "head", "idle")
"""Whose connections are closed to make room: first those on which nobody has asked anything yet."""
_OTHER_FILES = 256
"""File descriptors that client connections leave to replicas, the store and the rest."""


class Connected(Protocol):
    """One connection, as the watch sees it."""

    stage: Stage
    address: str

    def give_way(self) -> None:
        """Ends it, while nothing is under way on it."""
        ...

    def time_out(self) -> None:
        """Ends it, because it has been at its stage for too long."""
        ...


class Connections:
    """All that are open. `limits` is asked each time, so that a reload changes them."""

    def __init__(self, limits: Callable[[], LimitsSpec]) -> None:
        self._limits = limits
        self._queues: dict[Stage, OrderedDict[Connected, float]] = {s: OrderedDict() for s in get_args(Stage)}
        self._of: dict[str, OrderedDict[Connected, None]] = {}
        """By address, oldest first; kept only while their number is limited."""
        self._watch: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def enter(self, connection: Connected, now: float) -> bool:
        """Whether a new connection may stay; an older one that is not in use may have to go for it."""
        limits = self._limits()
        mine = (
            self._of.setdefault(connection.address, OrderedDict())
            if limits.max_connections_per_address
            else None
        )
        if (
            mine is not None
            and len(mine) >= (limits.max_connections_per_address or 0)
            and not self._dismiss_of(mine)
        ):
            return False
        if len(self) >= min(limits.max_connections, _most_files()) and not self._dismiss():
            return False
        self._queues[connection.stage][connection] = now
        if mine is not None:
            mine[connection] = None
        if self._watch is None:
            self._look_later()
        return True

    def move(self, connection: Connected, stage: Stage, now: float) -> None:
        """The connection is at another stage from now on."""
        if self._queues[connection.stage].pop(connection, None) is not None:
            self._queues[stage][connection] = now
        connection.stage = stage

    def leave(self, connection: Connected) -> None:
        """It is closed."""
        self._queues[connection.stage].pop(connection, None)
        mine = self._of.get(connection.address)
        if mine is not None:
            mine.pop(connection, None)
            if not mine:
                del self._of[connection.address]

    def _dismiss(self) -> bool:
        """Closes the connection that has been unused for longest, if there is one."""
        for stage in _FIRST_TO_GO:
            if queue := self._queues[stage]:
                self._close(next(iter(queue)))
                return True
        return False

    def _dismiss_of(self, mine: OrderedDict[Connected, None]) -> bool:
        for connection in mine:
            if connection.stage in _FIRST_TO_GO:
                self._close(connection)
                return True
        return False

    def _close(self, connection: Connected) -> None:
        self.leave(connection)
        connection.give_way()

    def _look_later(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self.end_overdue(asyncio.get_running_loop().time())
        self._watch = None
        if len(self):
            self._look_later()

    def end_overdue(self, now: float) -> None:
        """Ends what has been at its stage for too long."""
        limits = self._limits()
        patience: dict[Stage, float] = {
            "fresh": limits.keep_alive_s, "head": limits.head_timeout_s, "body": limits.body_timeout_s,
            "idle": limits.keep_alive_s,
        }  # fmt: skip
        for stage, patience_s in patience.items():
            queue = self._queues[stage]
            while queue and (first := next(iter(queue))) and queue[first] <= now - patience_s:
                self.leave(first)
                first.time_out()


def _most_files() -> int:
    """How many connections the process has file descriptors for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, soft - _OTHER_FILES) if soft != resource.RLIM_INFINITY else 2**31
