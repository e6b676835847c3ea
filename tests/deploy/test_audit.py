"""`make audit` against a database of our own: what is asked, what is told, and what when there is none."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from audit import locked, main

from tests.rig import free_port

LOCK = "orjson==3.11.0\n    # via graceway\ntorch==2.13.0+cpu ; sys_platform == 'linux'\n"


@pytest.fixture
def lock(tmp_path: Path) -> tuple[str, ...]:
    file = tmp_path / "cpu.txt"
    file.write_text(LOCK)
    return (str(file),)


@pytest.fixture
def database() -> Iterator[str]:
    class Osv(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
            bad: dict[str, Any] = {"vulns": [{"id": "GHSA-1"}, {"id": "PYSEC-2"}]}
            told = [
                bad if q["package"]["name"] == "torch" and q["version"] == "2.13.0" else {} for q in asked
            ]
            body = json.dumps({"results": told}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Osv)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_locks_are_read() -> None:
    names = {name for name, _ in locked(["requirements/cpu.txt"])}
    assert {"fastapi", "uvicorn", "httptools", "orjson", "grpcio"} <= names


def test_a_known_advisory_fails(
    lock: tuple[str, ...], database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([], database, lock) == 1
    said = capsys.readouterr().out
    assert "torch 2.13.0: GHSA-1, PYSEC-2" in said
    assert "2 locked packages, 1 with known advisories" in said


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--if-reachable"], 0)])
def test_without_a_database_it_says_that_nothing_was_checked(
    lock: tuple[str, ...], arguments: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments, f"http://127.0.0.1:{free_port()}", lock) == status
    assert "nothing was checked" in capsys.readouterr().out
