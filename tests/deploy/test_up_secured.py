"""`graceway up` with TLS for clients, over HTTP and gRPC, and with its log as data."""

import json
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton

from tests.certificates import Authority, Pair
from tests.deploy.test_serve import Engine, engine
from tests.deploy.test_up import System, until
from tests.gateway.grpc_rig import numbers, strings, text_of
from tests.rig import free_port

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(300)]

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CONFIG = """
server:
  port: {port}
  grpc_port: {grpc_port}
  tls: {{cert_file: "{cert}", key_file: "{key}", client_ca_file: "{authority}"}}
log: {{format: json}}
models:
  chat:
    tiers:
      - {{name: primary, backend: openai, served_model: m, replicas: [{{url: "{url}"}}], slots: 4}}
      - {{backend: canned, text: TEXT}}
"""


@dataclass
class Secured:
    """A system, its certificate, and what a client needs to be let in."""

    system: System
    replica: Engine
    authority: Authority
    client: Pair
    grpc_port: int
    log: Path

    def ask(self, context: ssl.SSLContext, **headers: str) -> dict[str, str]:
        body = {"model": "chat", "messages": [{"role": "user", "content": "the secret"}], "max_tokens": 3}
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.system.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json", **names},
        )
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            answer.read()
            return {name.lower(): value for name, value in answer.headers.items()}

    def lines(self) -> list[dict[str, Any]]:
        """All that it has logged: each line is one object."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def request(self, name: str) -> dict[str, Any]:
        """The line of a finished request, once it is there."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines() if line.get("request") == name]

        until(found, 10.0, self.log.read_text)
        (line,) = found()
        return line


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home, port, grpc_port = tmp_path_factory.mktemp("secured"), free_port(), free_port()
    authority = Authority(home, "ours")
    own, client = authority.sign("gateway"), authority.sign("client")
    log = home / "log"
    with engine(token_ms=1) as replica, log.open("wb") as lines:
        path = home / "up.yaml"
        path.write_text(
            CONFIG.format(
                port=port,
                grpc_port=grpc_port,
                cert=own.cert,
                key=own.key,
                authority=authority.file,
                url=replica.url,
            )
        )
        with System(path, port, lines) as system:
            try:
                system.wait_for(rf"^ready https://127.0.0.1:{port}$", 150.0)
                yield Secured(system, replica, authority, client, grpc_port, log)
            finally:
                if system.process.poll() is None:
                    system.end(signal.SIGTERM)


def test_a_line_for_each_request(secured: Secured) -> None:
    known = {"x_request_id": "r-1", "x_session_id": "s-1", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    secured.ask(secured.authority.client(secured.client), **known)
    line = secured.request("r-1")
    assert (line["trace"], line["session"], line["tier"]) == (TRACE, "s-1", "primary")
    assert line["replica"] == secured.replica.url.removeprefix("http://")
    assert "secret" not in secured.log.read_text()


def test_nobody_is_let_in_without_a_certificate(secured: Secured) -> None:
    with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
        secured.ask(secured.authority.client())
    done = subprocess.run(["curl", "-s", f"http://127.0.0.1:{secured.system.port}/status"], check=False)
    assert done.returncode != 0


def test_triton_s_client_is_let_in_with_one(secured: Secured) -> None:
    files = {
        "root_certificates": secured.authority.file,
        "private_key": secured.client.key,
        "certificate_chain": secured.client.cert,
    }
    with triton.InferenceServerClient(f"localhost:{secured.grpc_port}", ssl=True, **files) as client:
        inputs = [strings("text_input", "Hello"), numbers("max_tokens", "INT32", 3)]
        assert text_of(client.infer("chat", inputs))
    with (
        triton.InferenceServerClient(f"localhost:{secured.grpc_port}") as stranger,
        pytest.raises(triton.InferenceServerException),
    ):
        stranger.is_server_live(client_timeout=5.0)


def test_a_renewed_certificate_is_shown(secured: Secured) -> None:
    context = secured.authority.client(secured.client)

    def shown() -> bytes | None:
        with (
            socket.create_connection(("127.0.0.1", secured.system.port), 5.0) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as sock,
        ):
            return sock.getpeercert(binary_form=True)

    def has_changed() -> bool:
        return shown() != before

    before = shown()
    secured.authority.sign("gateway")
    until(has_changed, 20.0)


def test_a_lower_tier_s_answer_says_why(secured: Secured) -> None:
    fault = json.dumps({"kind": "error", "status": 500}).encode()
    with urllib.request.urlopen(f"{secured.replica.url}/sim/fault", fault, timeout=10):
        pass
    answer = secured.ask(secured.authority.client(secured.client), x_request_id="r-2")
    assert answer["x-served-tier"] == "canned"
    line = secured.request("r-2")
    assert (line["outcome"], line["tier"], line["reason"]) == ("degraded", "canned", answer["x-degraded"])
    until(lambda: any(e.get("event") == "health" for e in secured.lines()), 20.0)


def test_it_ends_quietly(secured: Secured) -> None:
    assert secured.system.end(signal.SIGTERM) == 0
    assert all(line["level"] and line["message"] for line in secured.lines())
    assert all(line.startswith(("ready ", "try:", "  curl ")) for line in secured.system.lines)
