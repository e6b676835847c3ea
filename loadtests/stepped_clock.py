"""A process whose clock can be stepped while it runs, as NTP or an operator does it to a machine's.

`python -m loadtests.stepped_clock FILE MODULE …` runs a module with its arguments; `write_step(FILE, 3600)` from
elsewhere puts its wall clock an hour ahead. With `--timers` before FILE, all that the process times steps along, as in
a program that times by the wall clock.
"""

import mmap
import runpy
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uvloop

_STEP = struct.Struct("d")


def write_step(path: Path, seconds: float) -> None:
    """How far ahead the clock is; creates the file."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(_STEP.pack(seconds))


class _Step:
    """What the file says, without asking the kernel each time."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._shown = mmap.mmap(file.fileno(), _STEP.size, access=mmap.ACCESS_READ)

    @property
    def seconds(self) -> float:
        found: float = _STEP.unpack_from(self._shown)[0]
        return found


def step_wall(step: _Step) -> None:
    """Unix time steps; what is timed by it was meant to be told, not timed."""
    time.time, time.time_ns = _stepped(time.time, step), _stepped_ns(time.time_ns, step)


def step_timers(step: _Step) -> None:
    """The clocks that never step do."""
    time.monotonic, time.perf_counter = _stepped(time.monotonic, step), _stepped(time.perf_counter, step)

    class SteppedLoop(uvloop.Loop):  # type: ignore[misc]
        """An event loop whose clock is the wall's."""

        def time(self) -> float:
            return float(super().time()) + step.seconds

    assert uvloop.run.__kwdefaults__ is not None
    uvloop.run.__kwdefaults__["loop_factory"] = SteppedLoop


def _stepped(clock: Callable[[], float], step: _Step) -> Callable[[], float]:
    return lambda: clock() + step.seconds


def _stepped_ns(clock: Callable[[], int], step: _Step) -> Callable[[], int]:
    return lambda: clock() + int(step.seconds * 1e9)


def main() -> None:
    arguments = sys.argv[1:]
    has_timers = arguments[0] == "--timers"
    file, module, *rest = arguments[1:] if has_timers else arguments
    step = _Step(Path(file))
    step_wall(step)
    if has_timers:
        step_timers(step)
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
