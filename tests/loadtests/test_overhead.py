"""The overhead bench: it measures, and its sums are right."""

import sys

import pytest

from loadtests.overhead import Sample, _cost, cpu_s, run_rounds
from loadtests.processes import ServerProcess
from tests.rig import eventually

BARE = Sample(1.0, 2.0, 3000.0, 90_000.0, 0.0, 0.0, 0.0, (1.0, 2.0))


async def test_no_gateway_is_measured() -> None:
    (cost,) = await run_rounds(["none"], rounds=1, requests=50, duration_s=0.3)
    assert 0.0 < cost.p50_ms < 50.0
    assert cost.requests_per_s > 300
    assert cost.chunks_per_s > 5_000
    assert cost.added_p50_ms == cost.cpu_us_per_request == cost.cpu_us_per_chunk == 0.0


async def test_graceway_is_measured_beside_it() -> None:
    bare, graceway = await run_rounds(["none", "graceway"], rounds=1, requests=60, duration_s=0.5)
    assert graceway.added_p50_ms > 0.0
    assert graceway.requests_per_s < bare.requests_per_s
    assert graceway.cpu_us_per_request > 10.0
    assert graceway.cpu_us_per_chunk > 0.5
    assert graceway.cpu_us_per_paced_chunk > 0.5


def test_a_cost_is_the_median_of_what_each_turn_and_round_adds() -> None:
    turns = [(1.5, 2.6), (1.7, 9.0), (1.8, 2.75)]
    samples = [
        Sample(p50, 5.0, 1000.0, 40_000.0, 100.0, 8.0, 20.0, turn)
        for p50, turn in zip((1.5, 9.0, 1.7), turns, strict=True)
    ]
    cost = _cost("graceway", samples, [BARE] * 3)
    assert cost.p50_ms == 1.7
    assert cost.added_p50_ms == pytest.approx(0.725)
    assert cost.added_p99_ms == 3.0
    assert cost.cpu_us_per_chunk == 8.0


async def test_a_childs_cpu_counts() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    script = (
        f"import subprocess, sys, time\nchild = subprocess.Popen([sys.executable, '-c', {burn!r} + '\\ntime.sleep(30)'])\n"
        "print('ready http://127.0.0.1:1', flush=True)\n"
        "import signal\nsignal.signal(signal.SIGTERM, lambda *_: (child.kill(), sys.exit()))\nsignal.pause()"
    )
    async with ServerProcess(sys.executable, "-c", script) as process:
        await eventually(lambda: _has_burnt(process, 0.3), within_s=20.0)


async def _has_burnt(process: ServerProcess, least_s: float) -> bool:
    return cpu_s(process) >= least_s
