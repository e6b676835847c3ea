"""The script by which Serve starts HAProxy: what it changes in a configuration, and HAProxy's opinion of the result."""

import json
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.front_tls import FrontTls
from deploy.haproxy import CONTROL_SOCKET, OWN_SOCKET, haproxy_environment
from gateway.specs import ServerTlsSpec
from tests.certificates import Authority
from tests.rig import eventually, free_port

# As Serve writes it, without what the script leaves alone.
CONFIG = """\
global
    log 127.0.0.1:514 local0 info
    stats socket {home}/h/admin.sock mode 666 level admin expose-fd listeners
defaults
    mode http
    timeout connect 1s
    retries 0
    timeout client 1s
    timeout server 1s
    errorfile 503 {home}/h/500.http
frontend prometheus
    bind :9101
    mode http
    no log
frontend http_frontend
    bind 127.0.0.1:{port}
    default_backend nobody
backend nobody
    server none 127.0.0.1:9
listen stats
  bind *:8404
  stats enable
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def start(
    home: Path, host: str, port: int, *arguments: str, tls: FrontTls | None = None
) -> subprocess.Popen[bytes]:
    environment = haproxy_environment(home, host, port, 60.0, tls)
    config = Path(environment["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"])
    config.write_text(CONFIG.format(home=home, port=port))
    (config.parent / "500.http").write_text("Serve's own")
    return subprocess.Popen(
        [environment["RAY_SERVE_HAPROXY_BINARY_PATH"], *arguments, "-db", "-f", str(config)]
    )


def test_only_the_front_end_is_left_to_the_network(home: Path) -> None:
    assert start(home, "0.0.0.0", 8123, "-c", "-q").wait(20) == 0
    config = (home / "h" / "haproxy.cfg").read_text()
    binds = [line.split()[1] for line in config.splitlines() if line.strip().startswith("bind ")]
    assert binds == [
        f"unix@{home}/haproxy-metrics.sock",
        "0.0.0.0:8123",
        f"unix@{home}/haproxy-statistics.sock",
    ]
    assert "local0 info" not in config


def test_without_a_gateway_it_refuses_as_the_gateway_would(home: Path) -> None:
    port = free_port()
    with start(home, "127.0.0.1", port) as process:
        try:
            answer = ask(port)
        finally:
            process.kill()
    head, _, body = answer.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 503 ")
    assert {"retry-after: 1", "x-shed-reason: no_replica"} <= set(head.lower().splitlines())
    assert json.loads(body)["error"]["code"] == "no_replica"


def ask(port: int) -> str:
    """The answer to one request, from a server that may still be starting."""
    for _ in range(100):
        try:
            with socket.create_connection(("127.0.0.1", port), 0.1) as sock:
                sock.settimeout(20)
                sock.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
                return b"".join(iter(lambda: sock.recv(65536), b"")).decode()
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise AssertionError("HAProxy does not listen")


@contextmanager
def running(home: Path, port: int, tls: FrontTls) -> Iterator[None]:
    with start(home, "127.0.0.1", port, tls=tls) as process:
        try:
            yield
        finally:
            process.kill()


def shown(port: int, client: ssl.SSLContext) -> bytes:
    """The certificate that is shown to a client which is answered."""
    with (
        socket.create_connection(("127.0.0.1", port), 5.0) as plain,
        client.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        certificate = sock.getpeercert(binary_form=True)
        sock.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 503 ")
        assert certificate is not None
        return certificate


async def serves(port: int, client: ssl.SSLContext) -> None:
    async def is_there() -> bool:
        try:
            return bool(shown(port, client))
        except ConnectionRefusedError:
            return False

    await eventually(is_there, 20.0)


@pytest.mark.asyncio
async def test_under_tls_nobody_is_answered_who_shows_no_certificate(home: Path, tmp_path: Path) -> None:
    ours, others, port = Authority(tmp_path, "ours"), Authority(tmp_path, "others"), free_port()
    own, client = ours.sign("gateway"), ours.sign("client")
    spec = ServerTlsSpec(cert_file=own.cert, key_file=own.key, client_ca_file=ours.file)
    with running(home, port, FrontTls(spec, home)):
        await serves(port, ours.client(client))
        for stranger in (ours.client(), ours.client(others.sign("client"))):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                shown(port, stranger)
        assert not ask(port).startswith("HTTP/1.1 503")
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(home / OWN_SOCKET))
            sock.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            assert sock.recv(65536).startswith(b"HTTP/1.1 503 ")
    assert (home / "front.pem").stat().st_mode & 0o077 == 0


@pytest.mark.asyncio
async def test_renewed_files_are_taken_up_and_broken_ones_are_not(
    home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new, port = Authority(tmp_path, "old"), Authority(tmp_path, "new"), free_port()
    own, client = old.sign("gateway"), old.sign("client")
    authorities = tmp_path / "clients.pem"
    authorities.write_text(Path(old.file).read_text())
    spec = ServerTlsSpec(cert_file=own.cert, key_file=own.key, client_ca_file=str(authorities))
    tls = FrontTls(spec, home)
    with running(home, port, tls):
        await serves(port, old.client(client))
        before = shown(port, old.client(client))
        old.sign("gateway")
        await tls.follow(home / CONTROL_SOCKET)
        assert shown(port, old.client(client)) != before
        # From now on another authority signs clients' certificates.
        authorities.write_text(Path(new.file).read_text())
        await tls.follow(home / CONTROL_SOCKET)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            shown(port, old.client(client))
        renewed = shown(port, old.client(new.sign("client")))
        assert not [r for r in caplog.records if r.levelname == "ERROR"]
        Path(own.key).write_text("no key")
        await tls.follow(home / CONTROL_SOCKET)
        assert "is not taken" in caplog.text
        assert shown(port, old.client(new.sign("client"))) == renewed
