"""One HTTP server around one gateway: uvicorn without its own ideas about signals and logs, and the drain at the end."""

import asyncio
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

import uvicorn

from deploy.config import Config
from deploy.config_source import Source
from gateway.app import Gateway
from gateway.hot_http import HotHttpProtocol
from gateway.server_tls import ServerTls
from gateway.specs import ServerTlsSpec

log = logging.getLogger("graceway.deploy")

BACKLOG = 4096
HANDSHAKE_S = 10.0
"""How long a client may take for TLS's."""
DRAIN_S = 30.0
"""How long requests in flight may take to finish once the process is told to end."""


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound socket that shares its port with other processes of ours. Raises OSError when the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


def is_taken(host: str, port: int) -> bool:
    """Whether somebody listens there already; sharing the port would hide that."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def free_ports(count: int) -> list[int]:
    """Ports on loopback that nobody listens on right now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def address_of(sock: socket.socket, tls: ServerTlsSpec | None = None) -> str:
    host, port = sock.getsockname()[:2]
    scheme = "http" if tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _Server(uvicorn.Server):
    """Says when it serves, and leaves signals to whoever runs it."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, on sockets that are there, and with a limit for clients that are slow to shake hands."""
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        self.servers = [
            await loop.create_server(
                lambda: HotHttpProtocol(self.config, self.server_state, {}),
                sock=sock,
                ssl=tls,
                backlog=self.config.backlog,
                ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None,
            )
            for sock in sockets or ()
        ]
        self.started = True
        self._on_ready()


class Beside(Protocol):
    """Another server of the same gateway, which starts before HTTP and drains with it."""

    async def start(self) -> int: ...
    def begin_drain(self, within_s: float) -> None: ...
    async def drained(self) -> None: ...


async def run_gateway(
    gateway: Gateway,
    source: Source,
    config: Config,
    sock: socket.socket,
    on_ready: Callable[[], None],
    beside: Beside | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, then lets what is in flight finish; SIGHUP re-reads the config."""
    tls = None if config.server.tls is None else ServerTls(config.server.tls)
    server = _Server(_uvicorn_config(gateway, tls), on_ready)
    hearing = _Hearing(gateway, source)
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, _begin_drain, gateway, server, beside)
    loop.add_signal_handler(signal.SIGHUP, hearing.begin)
    raise_file_limit()
    await gateway.start()
    calm_collector()
    try:
        if beside is not None:
            await beside.start()
        await server.serve(sockets=[sock])
        if beside is not None:
            await beside.drained()
    finally:
        await gateway.stop()


def raise_file_limit() -> None:
    """Each connection takes a file descriptor; many systems give a process 1,024 of those that it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def calm_collector() -> None:
    """What is there now stays: the collector need not look at it again, nor run every few requests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _uvicorn_config(gateway: Gateway, tls: ServerTls | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        gateway.asgi,
        interface="asgi3",
        proxy_headers=False,
        loop="none",
        http=HotHttpProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        backlog=BACKLOG,
        ssl_context_factory=None if tls is None else lambda *_: tls.context,
        timeout_graceful_shutdown=int(DRAIN_S),
    )


def _begin_drain(gateway: Gateway, server: _Server, beside: Beside | None) -> None:
    """The first signal drains; the second one leaves at once."""
    if server.should_exit:
        server.force_exit = True
        if beside is not None:
            beside.begin_drain(0.0)
        return
    log.info("draining: requests in flight may take %d s more", DRAIN_S)
    gateway.begin_drain()
    if beside is not None:
        beside.begin_drain(DRAIN_S)
    server.should_exit = True


class _Hearing:
    """Has SIGHUP heard once at a time."""

    def __init__(self, gateway: Gateway, source: Source) -> None:
        self._gateway, self._source = gateway, source
        self._running: asyncio.Task[None] | None = None
        self._again = False

    def begin(self) -> None:
        self._again = True
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._hear(), name="reload")

    async def _hear(self) -> None:
        while self._again:
            self._again = False
            await self._source.hear(self._gateway)
