"""The address of a Redis, as one URL: a single server, one that Sentinels know, or a Cluster.

    redis://USER:PASSWORD@HOST:PORT/DB            rediss:// for TLS, unix:///PATH for a socket
    redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER
    redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT

Options follow `?`: `tls=true`, `ca`, `cert` and `key` (files), `db`, `wait_replicas`, `timeout_ms`, and for the
Sentinels' own login `sentinel_user` and `sentinel_password`.
"""

from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

Kind = Literal["single", "sentinel", "cluster"]
KINDS: dict[str, Kind] = {
    "redis": "single",
    "rediss": "single",
    "unix": "single",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}
PORTS: dict[Kind, int] = {"single": 6379, "sentinel": 26379, "cluster": 6379}
WAIT_REPLICAS: dict[Kind, int] = {"single": 0, "sentinel": 1, "cluster": 0}
"""Unless the URL says otherwise. A master that Sentinels have replaced goes on for a moment: only what one more server
has of two or three can't have been written to it alone."""
FILES = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile"}
OPTIONS = (*FILES, "tls", "db", "wait_replicas", "timeout_ms", "sentinel_user", "sentinel_password")
DEFAULT_TIMEOUT_S = 0.05
_ENCODED = "; in a password, write / as %2F, ? as %3F, # as %23 and % as %25"
"""Said where a password that is not may have been taken for something else."""


@dataclass(frozen=True, slots=True, order=True)
class Server:
    """Where one server listens: host and port, or the path of its socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """What a URL says. `login` are the keywords of a connection to a data server, whichever it is."""

    kind: Kind
    servers: tuple[Server, ...]
    master: str = ""
    """The name by which Sentinels know it."""
    login: dict[str, Any] = field(default_factory=dict, repr=False)
    sentinel_login: dict[str, Any] = field(default_factory=dict, repr=False)
    wait_replicas: int = 0
    """How many replicas must have a session's turn before it counts as kept; 0: nobody is waited for."""
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def address(self) -> str:
        """Where the servers are, as a URL for everybody's eyes: without users, passwords and options."""
        if self.servers[0].path:
            return f"unix://{self.servers[0].path}"
        tls = "s" if self.login.get("ssl") else ""
        how = "" if self.kind == "single" else f"+{self.kind}"
        hosts = ",".join(
            f"[{s.host}]:{s.port}" if ":" in s.host else f"{s.host}:{s.port}" for s in self.servers
        )
        rest = f"/{self.master}" if self.master else f"/{self.login['db']}" if "db" in self.login else ""
        return f"redis{tls}{how}://{hosts}{rest}"


def parse_redis_url(url: str) -> RedisUrl:
    """Raises ValueError with what is wrong; never with what could be a password."""
    parts = urlsplit(url)
    kind = KINDS.get(parts.scheme)
    if kind is None:
        raise ValueError(f"{parts.scheme}:// is none of {', '.join(f'{name}://' for name in KINDS)}")
    options = dict(parse_qsl(parts.query))
    if unknown := options.keys() - set(OPTIONS):
        raise ValueError(f"there is no option '{min(unknown)}'; there are {', '.join(OPTIONS)}")
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    tls = _tls(options, is_on=parts.scheme.startswith("rediss") or _is_yes(options.get("tls", "")))
    login = _login(unquote(user), unquote(password)) | tls
    path = parts.path.strip("/")
    if kind == "sentinel" and not path:
        raise ValueError("the name of the master is missing: redis+sentinel://HOST:PORT,HOST:PORT/MASTER")
    db = _number(options, "db", path if kind == "single" and parts.scheme != "unix" else "0")
    if kind == "cluster" and (db or path):
        raise ValueError("a Cluster has no databases: end the URL after its hosts")
    is_socket = parts.scheme == "unix"
    if is_socket and not parts.path:
        raise ValueError("the path is missing: write unix:///PATH")
    return RedisUrl(
        kind,
        (Server(path=parts.path),) if is_socket else _servers(hosts, PORTS[kind]),
        path if kind == "sentinel" else "",
        login | ({"db": db} if db else {}),
        _login(options.get("sentinel_user", ""), options.get("sentinel_password", "")) | tls,
        _number(options, "wait_replicas", f"{WAIT_REPLICAS[kind]}"),
        _number(options, "timeout_ms", f"{DEFAULT_TIMEOUT_S * 1000:.0f}") / 1000,
    )


def _login(user: str, password: str) -> dict[str, Any]:
    found = {"username": user, "password": password}
    return {name: value for name, value in found.items() if value}


def _tls(options: dict[str, str], is_on: bool) -> dict[str, Any]:
    files = {FILES[name]: value for name, value in options.items() if name in FILES}
    if files and not is_on:
        raise ValueError("certificates are for TLS: write rediss://, or add tls=true")
    return files | {"ssl": True} if is_on else {}


def _is_yes(word: str) -> bool:
    if word not in ("", "true", "false"):
        raise ValueError("tls is true or false")
    return word == "true"


def _number(options: dict[str, str], name: str, default: str) -> int:
    text = options.get(name, default) or "0"
    if not text.isdigit():
        raise ValueError(f"{name} is a number{_ENCODED}")
    if name == "timeout_ms" and int(text) == 0:
        raise ValueError("timeout_ms is a number above 0")
    return int(text)


def _servers(hosts: str, port: int) -> tuple[Server, ...]:
    found = []
    for host in hosts.split(","):
        parts = urlsplit(f"//{host}")
        if not parts.hostname:
            raise ValueError("the host is missing: write HOST:PORT")
        found.append(Server(_name(parts.hostname), _port(parts) or port))
    return tuple(found)


def _name(host: str) -> str:
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"the host is no name{_ENCODED}") from None
    return host


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:
        raise ValueError(f"the port is a number up to 65535{_ENCODED}") from None
