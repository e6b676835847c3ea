"""An engine server: vLLM's own OpenAI server on a CPU, started in half the time, and waiting without spinning.

vLLM runs as three processes, and its CPU platform has each of the last two import everything anew. Here they
are forked instead, as vLLM itself does on GPUs. That is sound as long as no OpenMP thread has been started
before the fork, which holds for the two parents: they compute nothing.

They wait for each other by spinning for a second before they sleep. That is right where a GPU computes and cores are
idle; here it takes the core on which the other one computes, and within a process the interpreter's lock from the
threads that load KV blocks: `os.sched_yield` of Python 3.11 keeps it. So they look, and sleep a moment: much less than
a step takes. They go on to do so for a second, as what wakes them after that gets lost if it comes often. On GPUs
vLLM's own module is run, unchanged.
"""

import os
import runpy
import sys
import time
from functools import partial

_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
_LOOK_EVERY_S = 0.0003


def _fork_workers() -> None:
    from vllm.utils import system_utils

    # Called each time before the method is read, after the CPU platform has set it to `spawn`.
    system_utils._maybe_force_spawn = lambda: os.environ.__setitem__(_METHOD, "fork")


def _wait_asleep() -> None:
    from vllm.distributed.device_communicators import shm_broadcast

    shm_broadcast.sched_yield = partial(time.sleep, _LOOK_EVERY_S)


if __name__ == "__main__":
    _fork_workers()
    _wait_asleep()
    sys.argv[0] = "vllm"
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
