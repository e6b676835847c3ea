"""`graceway serve`: the gateway in this process, or in several that share the port."""

import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from deploy.compose import build_gateway, store_address
from deploy.config import Config, load_config
from deploy.http_server import address_of, is_taken, listening_socket, run_gateway
from deploy.workers import WorkerPool

EXIT_NO_PORT = 4


def serve(path: Path, config: Config, address: tuple[str, int], workers: int) -> int:
    """Serves until told to end; the exit status."""
    _log_to_stderr()
    host, port = address
    if port and is_taken(host, port):
        sys.stderr.write(f"{host}:{port} is taken. Choose another port with --port, or 0 for any free one\n")
        return EXIT_NO_PORT
    try:
        sock = listening_socket(host, port)
    except OSError as error:
        sys.stderr.write(
            f"can't listen on {host}:{port} ({error.strerror}). Choose another --host or --port\n"
        )
        return EXIT_NO_PORT
    with sock:
        run = _serve_alone if workers == 1 else _serve_with(workers)
        uvloop.run(run(path, config, sock))
    return 0


def run_worker(
    path: Path, config: Config, sock: socket.socket, store_url: str, on_ready: Callable[[], None]
) -> None:
    """The whole life of one process that serves `sock`, with a store that somebody else keeps."""
    _log_to_stderr()
    uvloop.run(
        run_gateway(
            build_gateway(config, store_url, partial(load_config, path)), path, config, sock, on_ready
        )
    )


async def _serve_alone(path: Path, config: Config, sock: socket.socket) -> None:
    async with store_address(config) as store_url:
        gateway = build_gateway(config, store_url, partial(load_config, path))
        await run_gateway(gateway, path, config, sock, lambda: _say_ready(sock))


def _serve_with(workers: int) -> Callable[[Path, Config, socket.socket], Coroutine[Any, Any, None]]:
    async def run(path: Path, config: Config, sock: socket.socket) -> None:
        async with store_address(config) as store_url:
            with tempfile.TemporaryDirectory(prefix="graceway-") as home:
                pool = WorkerPool(path, Path(home), sock, store_url, workers)
                await pool.run(on_ready=lambda: _say_ready(sock))

    return run


def _say_ready(sock: socket.socket) -> None:
    sys.stdout.write(f"ready {address_of(sock)}\n")
    sys.stdout.flush()


def _log_to_stderr() -> None:
    level = os.environ.get("GRACEWAY_LOG", "INFO").upper()
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("uvicorn.error").setLevel("WARNING")
