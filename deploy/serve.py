"""`graceway serve`: the gateway in this process, or in several that share the port."""

import logging
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import uvloop

from deploy.compose import build_gateway, store_address
from deploy.config import Config
from deploy.config_source import OwnFile, Source
from deploy.http_server import Beside, address_of, is_taken, listening_socket, run_gateway
from deploy.log import begin_log
from deploy.workers import WorkerPool
from gateway.app import Gateway
from gateway.config_standing import ConfigStanding
from gateway.line_writer import LineWriter

log = logging.getLogger("graceway.deploy")

EXIT_NO_PORT = 4


class NoPort(OSError):  # noqa: N818
    """An address that can't be had; `str()` says why, and what to do."""


def serve(path: Path, config: Config, address: tuple[str, int], grpc_port: int, workers: int) -> int:
    """Serves until told to end; the exit status. `grpc_port` 0 is no gRPC."""
    lines = begin_log(config.log)
    host, port = address
    with ExitStack() as stack:
        try:
            sock = stack.enter_context(_reserved(host, port, "--port"))
            if grpc_port:
                # gRPC binds its port itself. Until then, and between workers, this keeps it.
                stack.enter_context(_reserved(host, grpc_port, "--grpc-port"))
        except NoPort as error:
            sys.stderr.write(f"{error}\n")
            return EXIT_NO_PORT
        if workers == 1:
            uvloop.run(_serve_alone(path, config, sock, grpc_port, lines))
        else:
            uvloop.run(_serve_with(workers, path, config, sock, grpc_port))
    return 0


def _reserved(host: str, port: int, option: str) -> socket.socket:
    """A bound socket, on which nobody listens yet. Raises NoPort."""
    if port and is_taken(host, port):
        or_free = ", or 0 for any free one" if option == "--port" else ""
        raise NoPort(f"{host}:{port} is taken. Choose another port with {option}{or_free}")
    try:
        return listening_socket(host, port)
    except OSError as error:
        mend = f"Choose another --host or {option}"
        raise NoPort(f"can't listen on {host}:{port} ({error.strerror}). {mend}") from error


def run_worker(
    source: Source,
    config: Config,
    standing: ConfigStanding,
    sock: socket.socket,
    grpc_port: int,
    store_url: str,
    on_ready: Callable[[], None],
) -> None:
    """The whole life of one process that serves `sock`, with a store that somebody else keeps."""
    lines = begin_log(config.log)
    uvloop.run(_serve_on(source, config, standing, sock, grpc_port, store_url, lines, on_ready))


async def _serve_on(
    source: Source,
    config: Config,
    standing: ConfigStanding | None,
    sock: socket.socket,
    grpc_port: int,
    store_url: str,
    lines: LineWriter,
    on_ready: Callable[[], None],
) -> None:
    gateway = build_gateway(config, store_url, source.read, lines)
    gateway.config = standing or gateway.config
    beside = _grpc_server(gateway, sock.getsockname()[0], grpc_port, config) if grpc_port else None
    await run_gateway(gateway, source, config, sock, on_ready, beside)


def _grpc_server(gateway: Gateway, host: str, port: int, config: Config) -> Beside:
    # Who does not use gRPC need not wait for it to be imported.
    from deploy.grpc_server import GrpcServer

    return GrpcServer(gateway, host, port, config.server.tls)


async def _serve_alone(
    path: Path, config: Config, sock: socket.socket, grpc_port: int, lines: LineWriter
) -> None:
    async with store_address(config) as store_url:
        source = OwnFile(path, config)

        def say_ready() -> None:
            _say_ready(config, sock, grpc_port)

        await _serve_on(source, config, None, sock, grpc_port, store_url, lines, say_ready)


async def _serve_with(workers: int, path: Path, config: Config, sock: socket.socket, grpc_port: int) -> None:
    async with store_address(config) as store_url:
        with tempfile.TemporaryDirectory(prefix="graceway-") as home:
            pool = WorkerPool(path, Path(home), sock, grpc_port, store_url, workers)
            await pool.run(on_ready=lambda: _say_ready(config, sock, grpc_port))


def _say_ready(config: Config, sock: socket.socket, grpc_port: int) -> None:
    if grpc_port:
        log.info("gRPC is at %s:%d", sock.getsockname()[0], grpc_port)
    sys.stdout.write(f"ready {address_of(sock, config.server.tls)}\n")
    sys.stdout.flush()
