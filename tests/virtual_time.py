"""An event loop whose clock jumps to the next timer: minutes of simulated load in the time that its steps take."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumps(selectors.SelectSelector):
    """Waits for nobody: what would be waited for is added to the loop's clock."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing is left that could happen"
        self.loop.now += max(0.0, timeout)
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, on a clock of its own. Without I/O."""

    def __init__(self) -> None:
        self.now = 1000.0
        jumps = _Jumps()
        jumps.loop = self
        super().__init__(jumps)

    def time(self) -> float:
        return self.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
