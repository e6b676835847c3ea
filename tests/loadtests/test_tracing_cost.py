"""The table of what tracing costs, from samples of known size, and the clock that it is measured with."""

import os
import time
from threading import Thread

import pytest

from loadtests.tracing_cost import Sample, _line, cpu_s


def test_each_round_is_compared_with_its_own() -> None:
    # The machine was twice as slow in the second round, for all alike.
    rounds = [
        {"none": Sample(1000.0, 300.0), "none again": Sample(1000.0, 300.0), "100 %": Sample(900.0, 315.0)},
        {"none": Sample(500.0, 600.0), "none again": Sample(500.0, 600.0), "100 %": Sample(450.0, 630.0)},
        {"none": Sample(1000.0, 300.0), "none again": Sample(1020.0, 306.0), "100 %": Sample(909.0, 333.3)},
    ]
    line = _line("whole", "100 %", rounds).split()
    assert line[:3] == ["whole", "100", "%"]
    assert line[3:6] == ["333", "+5.0%", "(+5.0%"]
    assert line[8:10] == ["900", "-10.0%"]
    again = _line("whole", "none again", rounds)
    assert "+0.0% (+0.0% to +2.0%)" in again


def test_the_clock_is_that_of_all_threads_of_the_process() -> None:
    before_s, own_s = cpu_s(os.getpid()), time.process_time()
    worker = Thread(target=sum, args=(range(3_000_000),))
    worker.start()
    worker.join()
    assert cpu_s(os.getpid()) - before_s == pytest.approx(time.process_time() - own_s, rel=0.2)
    assert cpu_s(os.getpid()) - before_s > 0.005
