"""A process's clock is stepped from outside while it runs; what it times steps only where that is asked for."""

import asyncio
import sys
from pathlib import Path

import pytest

from loadtests.processes import ROOT
from loadtests.stepped_clock import write_step

TELLS = """\
import asyncio, sys, time
import uvloop

async def tell():
    while sys.stdin.readline():
        print(time.time(), time.monotonic(), asyncio.get_running_loop().time(), flush=True)

uvloop.run(tell())
"""


@pytest.mark.parametrize("has_timers", [False, True])
async def test_a_step_is_seen_at_once(has_timers: bool, tmp_path: Path) -> None:
    (tmp_path / "tells.py").write_text(TELLS)
    clock = tmp_path / "clock"
    write_step(clock, 0.0)
    timers = ("--timers",) if has_timers else ()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtests.stepped_clock", *timers, str(clock), "tells"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    told: list[list[float]] = []
    for step in (0.0, 3600.0, 0.0):
        write_step(clock, step)
        process.stdin.write(b"tell\n")
        told.append([float(word) for word in (await process.stdout.readline()).split()])
    process.stdin.close()
    assert await process.wait() == 0
    before, ahead, back = told
    steps = [3600 if has_timers or number == 0 else 0 for number in range(3)]
    for number, step in enumerate(steps):
        assert ahead[number] - before[number] == pytest.approx(step, abs=60)
        assert back[number] - before[number] == pytest.approx(0, abs=60)
