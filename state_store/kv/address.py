"""Where a Redis is and how it is spoken to, from a URL; and a connected socket to it."""

import socket
import ssl
import struct
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

SCHEMES = ("redis", "rediss", "unix")
_SOCKET_BUFFER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """One server. `path` is a Unix socket's; without it, `host` and `port`."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str = ""
    db: int = 0
    username: str = ""
    password: str = field(default="", repr=False)
    tls: bool = False
    ca_file: str = ""
    """Certificates that are trusted besides the system's; `?ssl_ca_certs=` in the URL."""


def parse_address(url: str) -> Address:
    """The address in a `redis://`, `rediss://` or `unix://` URL. Raises ValueError for any other."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ValueError(f"KV blocks can't be kept at {parts.scheme or url}://: only {', '.join(SCHEMES)}")
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    if parts.scheme == "unix":
        db = int(query.get("db", "0"))
        return Address(path=unquote(parts.path), db=db, username=username, password=password)
    return Address(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or 6379,
        db=int(parts.path.strip("/") or query.get("db", "0")),
        username=username,
        password=password,
        tls=parts.scheme == "rediss",
        ca_file=query.get("ssl_ca_certs", ""),
    )


def connect(address: Address, timeout_s: float) -> socket.socket:
    """A connected socket, each of whose calls ends within `timeout_s`. Raises OSError."""
    if address.path:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(address.path)
        except OSError:
            sock.close()
            raise
    else:
        sock = socket.create_connection((address.host, address.port), timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
    if address.tls:
        return _with_tls(sock, address)
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


def _with_tls(sock: socket.socket, address: Address) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    if address.ca_file:
        context.load_verify_locations(address.ca_file)
    try:
        return context.wrap_socket(sock, server_hostname=address.host)
    except OSError:
        sock.close()
        raise
