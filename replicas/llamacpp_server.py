"""An engine server: llama.cpp's own HTTP server, with OpenAI's routes, on one GGUF model.

Run as `python -m replicas.llamacpp_server --model PATH --port N …`; prints `ready URL` once it serves and
ends on SIGTERM or SIGINT. Everything that a request passes through is llama.cpp's code; Python only starts
and stops it.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from xllamacpp import CommonParams, Server

_MIB = 1024 * 1024


@dataclass(frozen=True)
class ServerOptions:
    """How one server is set up; a slot is one sequence that it decodes at once."""

    model: str
    host: str
    port: int
    served_model: str
    slots: int
    slot_tokens: int
    threads: int
    prompt_cache_bytes: int
    api_key: str | None


def default_threads() -> int:
    """Half of the cores. llama.cpp's threads spin at a barrier after every operation, so that one which has to wait
    for a core holds up all of them: with every core taken, four busy processes beside made a token 30 times slower.
    """
    return max(1, len(os.sched_getaffinity(0)) // 2)


def read_options(arguments: Sequence[str]) -> ServerOptions:
    parser = argparse.ArgumentParser(prog="replicas.llamacpp_server", description=__doc__)
    parser.add_argument("--model", required=True, help="a GGUF file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--served-model", required=True, help="the name that clients use")
    parser.add_argument("--slots", type=int, default=4, help="sequences decoded at once")
    parser.add_argument("--slot-tokens", type=int, default=2048, help="longest sequence, prompt and answer")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--prompt-cache-bytes", type=int, default=128 * _MIB, help="for prompts seen before")
    parser.add_argument("--api-key", default=os.environ.get("GRACEWAY_ENGINE_API_KEY"))
    return ServerOptions(**vars(parser.parse_args(arguments)))


def to_params(options: ServerOptions) -> CommonParams:
    """llama.cpp's own parameters for these options."""
    params = CommonParams()
    params.model.path = options.model
    params.model_alias = {options.served_model}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.slots
    # llama.cpp divides its context among the slots.
    params.n_ctx = options.slots * options.slot_tokens
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    # Threads that spin between two steps would take the cores that the replicas beside need.
    params.cpuparams.poll = 0
    params.cpuparams_batch.poll = 0
    params.cache_ram_mib = options.prompt_cache_bytes // _MIB
    params.fit_params = False
    params.endpoint_metrics = True
    params.ui = False
    params.verbosity = 1
    if options.api_key:
        params.api_keys = [options.api_key]
    return params


def main(arguments: Sequence[str]) -> None:
    signals = {signal.SIGTERM, signal.SIGINT}
    # Blocked before llama.cpp starts its threads, so that no thread of it is interrupted.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    server = Server(to_params(read_options(arguments)))
    print(f"ready {server.listening_address}", flush=True)  # noqa: T201
    signal.sigwait(signals)
    # llama.cpp's own ending waits for the sequences under way; a drain has done so before, or nobody wants
    # them.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
