"""The table of what tracing costs, from rounds of known size, and the clocks that it is measured with."""

import os
import time
from threading import Thread

import pytest

from loadtests.tracing_cost import _line, cpu_s, first_thread_s, with_threads


def test_each_round_is_compared_with_its_own() -> None:
    # The machine was twice as slow in the second round, for all alike.
    rounds = [
        {"0 % sampled": 300.0, "100 % sampled": 310.0},
        {"0 % sampled": 600.0, "100 % sampled": 625.0},
        {"0 % sampled": 300.0, "100 % sampled": 313.0},
    ]
    line = _line("whole", "100 % sampled", with_threads(rounds, 5.0), "0 % sampled").split()
    assert line == ["whole", "100", "%", "sampled", "3", "318", "+5.0%", "(+5.0%", "to", "+6.0%)"]
    assert _line("whole", "0 % sampled", rounds, "0 % sampled").split()[-2:] == ["3", "300"]


def test_one_clock_is_of_all_threads_and_one_of_the_first() -> None:
    pid = os.getpid()
    before_s, own_s, first_s = cpu_s(pid), time.process_time(), first_thread_s(pid)
    worker = Thread(target=sum, args=(range(3_000_000),))
    worker.start()
    worker.join()
    spent_s = cpu_s(pid) - before_s
    assert spent_s == pytest.approx(time.process_time() - own_s, rel=0.2)
    assert spent_s > 0.005
    assert first_thread_s(pid) - first_s < spent_s / 2
