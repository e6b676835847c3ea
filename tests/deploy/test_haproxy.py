"""The script by which Serve starts HAProxy: what it changes in a configuration, and HAProxy's opinion of the result."""

import json
import socket
import subprocess
import time
from pathlib import Path

import pytest

from deploy.haproxy import haproxy_environment
from tests.rig import free_port

# As Serve writes it, without what the script leaves alone.
CONFIG = """\
global
    log 127.0.0.1:514 local0 info
    stats socket {home}/h/admin.sock mode 666 level admin expose-fd listeners
defaults
    mode http
    timeout connect 1s
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


def start(home: Path, host: str, port: int, *arguments: str) -> subprocess.Popen[bytes]:
    environment = haproxy_environment(home, host, port, 60.0)
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
