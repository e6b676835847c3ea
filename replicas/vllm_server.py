"""An engine server: vLLM's own OpenAI server on a CPU, started in half the time.

vLLM runs as three processes, and its CPU platform has each of the last two import everything anew. Here they
are forked instead, as vLLM itself does on GPUs. That is sound as long as no OpenMP thread has been started
before the fork, which holds for the two parents: they compute nothing. On GPUs vLLM's own module is run,
unchanged.
"""

import os
import runpy
import sys

_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"


def _fork_workers() -> None:
    from vllm.utils import system_utils

    # Called each time before the method is read, after the CPU platform has set it to `spawn`.
    system_utils._maybe_force_spawn = lambda: os.environ.__setitem__(_METHOD, "fork")


if __name__ == "__main__":
    _fork_workers()
    sys.argv[0] = "vllm"
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
