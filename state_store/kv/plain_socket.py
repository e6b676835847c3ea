"""A connected socket to a Redis server, over a Unix socket, TCP or TLS, none of whose calls lasts for ever."""

import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any

from state_store.redis_url import FILES, Server

_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024


def connect(server: Server, login: Mapping[str, Any], timeout_s: float) -> socket.socket:
    """Connects within `timeout_s`, by which each later call on the socket ends, too. Raises OSError.

    `login` is that of a `RedisUrl`: with `ssl`, TLS is spoken, with its files.
    """
    if server.path:
        sock = _unix(server.path, timeout_s)
    else:
        sock = _tcp(server, timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
    if login.get("ssl"):
        return _with_tls(sock, server.host, login)
    set_timeout(sock, timeout_s)
    return sock


def set_timeout(sock: socket.socket, timeout_s: float) -> None:
    """Bounds each call. Left to the kernel where it can be: then a large read is one call, not one per wake-up."""
    if isinstance(sock, ssl.SSLSocket):
        sock.settimeout(timeout_s)
        return
    seconds, rest = divmod(max(timeout_s, 1e-3), 1.0)
    limit = struct.pack("ll", int(seconds), int(rest * 1e6))
    sock.setblocking(True)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def is_local(sock: socket.socket) -> bool:
    """Whether the server that it is connected to runs on this machine."""
    if sock.family == socket.AF_UNIX:
        return True
    return bool(sock.getpeername()[0] == sock.getsockname()[0])


def _tcp(server: Server, timeout_s: float) -> socket.socket:
    try:
        return socket.create_connection((server.host, server.port), timeout_s)
    except UnicodeError:
        raise OSError(f"{server.host} is no name of a host") from None


def _unix(path: str, timeout_s: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def _with_tls(sock: socket.socket, host: str, login: Mapping[str, Any]) -> ssl.SSLSocket:
    try:
        context = ssl.create_default_context(cafile=login.get("ssl_ca_certs"))
        if certificate := login.get("ssl_certfile"):
            # Without one, a key under a password would be asked for at the terminal.
            context.load_cert_chain(certificate, login.get("ssl_keyfile"), password="")
        return context.wrap_socket(sock, server_hostname=host)
    except FileNotFoundError:
        sock.close()
        named = [login[name] for name in FILES.values() if name in login]
        raise OSError(f"one of these files is not there: {', '.join(named)}") from None
    except OSError:
        sock.close()
        raise
