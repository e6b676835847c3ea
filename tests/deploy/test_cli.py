"""The command line as an operator meets it: exit statuses, what goes where, and how long it takes."""

import json
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

import psutil
import pytest

GRACEWAY = [sys.executable, "-m", "deploy"]
REPORT = {
    "ready": False,
    "draining": False,
    "models": {
        "chat": {
            "ready": True,
            "tiers": [
                {
                    "name": "primary",
                    "backend": "vllm",
                    "quality": 1.0,
                    "serving": False,
                    "reason": "p-1 down (no answer)",
                    "share_60s": 0.0,
                    "waiting": 3,
                    "replicas": [
                        {
                            "replica": "p-1",
                            "url": "http://h:1",
                            "zone": "a",
                            "state": "down",
                            "reason": "no answer [within 5 s]",
                            "in_flight": 2,
                            "slots": 4,
                            "breaker": "open",
                        }
                    ],
                },
                {
                    "name": "canned",
                    "backend": "canned",
                    "quality": 0.0,
                    "serving": True,
                    "reason": "",
                    "share_60s": 0.25,
                    "waiting": 0,
                    "replicas": [],
                },
            ],
        }
    },
    "state_store": {"url": "redis", "available": False, "since": 1.0, "error": "refused"},
    "queue": {"chat": 3},
    "sessions": 7,
}


def graceway(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GRACEWAY, *arguments], capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A server on loopback that answers everything alike."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_check_explains_a_good_config(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("models: {chat: {tiers: [{backend: canned, slots: 2}]}}\n")
    done = graceway("check", "-c", str(path))
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "chat: 1 tiers, best first"
    assert "warning: chat/canned: 'slots' never applies to backend canned. Remove it" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{path} is valid"


def test_check_refuses_a_bad_one_with_status_2(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("models: {chat: {tiers: [{backend: vllm}]}}\n")
    done = graceway("check", "-c", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    mend = "Add `model: …`, a folder or a hub id"
    assert done.stderr == f"{path}:1: a tier with backend vllm needs 'model'. {mend}\n"


@pytest.mark.parametrize("command", ["serve", "up"])
def test_a_bad_config_starts_nothing(command: str, tmp_path: Path) -> None:
    done = graceway(command, "-c", str(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert "there is no such file" in done.stderr


def test_check_answers_at_once(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("models: {chat: {tiers: [{backend: canned}]}}\n")

    def cpu_s() -> float:
        before = getrusage(RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-c", _CPU_OF_CHECK, str(path)], check=True, capture_output=True, timeout=60
        )
        after = getrusage(RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(cpu_s() for _ in range(3)) < 2.0
    modules = subprocess.run(
        [sys.executable, "-c", _HEAVY_IMPORTS, str(path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert modules.stdout.splitlines()[-1] == "heavy: []"


_CPU_OF_CHECK = (
    "import sys; sys.argv = ['graceway', 'check', '-c', sys.argv[1]]; from deploy.cli import main; main()"
)
_HEAVY_IMPORTS = """
import sys
path = sys.argv[1]
sys.argv = ["graceway", "check", "-c", path]
from deploy.cli import main
try:
    main()
except SystemExit:
    pass
print("heavy:", [name for name in ("ray", "fastapi", "aiohttp", "uvicorn", "redis", "torch") if name in sys.modules])
"""


def test_status_in_words() -> None:
    with answering(200, json.dumps(REPORT).encode()) as url:
        done = graceway("status", "--url", url)
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"{url}: not ready",
        "",
        "chat: ready",
        "  1. primary (vllm, quality 1): can not serve (p-1 down (no answer)), 3 waiting",
        "       p-1 in zone a: down (no answer [within 5 s]), 2 of 4 slots in use, breaker open",
        "  2. canned (canned, quality 0): can serve, served 25% of the last minute",
        "",
        f"state store: redis, not available since {datetime.fromtimestamp(1.0):%H:%M:%S} (refused); requests go on without it",
        "queue: 3 waiting; sessions: 7",
    ]


def test_status_tells_what_clients_get_since_when_and_why() -> None:
    body: dict[str, Any] = json.loads(json.dumps(REPORT))
    chat = body["models"]["chat"]
    text = "chat is served by canned because the primary replica is down [x]"
    standing = {"level": "degraded", "text": text, "cost": "mean quality 0", "since": 1_760_000_000.0}
    chat |= {
        "standing": standing,
        "answers_60s": 30,
        "sheds_60s": {"no_replica": 10},
        "degraded_60s": {"refused": 30},
    }
    chat["tiers"][1] |= {
        "share_60s": 1.0,
        "allotted": 0.5,
        "held_because": "override",
        "override_ends_in_s": 61.0,
    }
    body["now"] = 1_760_000_060.0
    body["models"] = {"well": {**chat, "standing": {"level": "best", "text": "well"}}, "chat": chat}
    with answering(200, json.dumps(body).encode()) as url:
        said = graceway("status", "--url", url).stdout
    at = datetime.fromtimestamp(1_760_000_000.0).strftime("%H:%M:%S")
    assert f"  {text} since {at}\n  mean quality 0\n" in said
    assert (
        "served 75% of the last minute, may have 50% (share set by an operator, for 1 min 1 s more)" in said
    )
    assert (
        "  last minute: 30 answers; lower tier because: connection refused 30; refused: no replica could serve 10\n"
        in said
    )
    assert said.index("chat: ready") < said.index("well: ready")


def test_status_as_data() -> None:
    with answering(200, json.dumps(REPORT).encode()) as url:
        done = graceway("status", "--url", url + "/", "--json")
    assert json.loads(done.stdout) == REPORT


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, b"<html>", "is no gateway's address"),
        (200, b"[1]", "not as a gateway"),
        (404, b"{}", "no gateway answers at"),
        (401, b"{}", "runs, and wants a key: --key KEY, or GRACEWAY_KEY in the environment"),
    ],
)
def test_status_of_something_else(status: int, body: bytes, says: str) -> None:
    with answering(status, body) as url:
        done = graceway("status", "--url", url)
    assert done.returncode == 3
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_key_that_the_gateway_does_not_know() -> None:
    with answering(401, b"{}") as url:
        for command in ("status", "top", "report"):
            done = graceway(command, "--url", url, "--key", "sk-wrong")
            assert done.returncode == 3
            assert done.stderr.startswith(f"the gateway at {url} runs, and does not know this key.")
            assert "sk-wrong" not in done.stderr


def test_status_of_nothing() -> None:
    done = graceway("status", "--url", "http://127.0.0.1:9")
    assert done.returncode == 3
    assert "no gateway answers at http://127.0.0.1:9" in done.stderr
    assert graceway("status", "--url", "nonsense").returncode == 3


def test_version_and_the_commands_there_are() -> None:
    assert graceway("--version").stdout.startswith("graceway 0.")
    help_text = graceway("--help").stdout
    assert all(command in help_text for command in ("check", "drill", "serve", "status", "top", "up"))


def test_drills_are_listed_and_wrong_ones_refused() -> None:
    listed = graceway("drill", "list")
    assert listed.returncode == 0
    assert "replica-killed" in listed.stdout
    shell = f"set -o pipefail; {shlex.join([*GRACEWAY, 'drill', 'list'])} | true"
    cut = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=False)
    assert (cut.returncode, cut.stderr) == (141, "")
    assert "--fault-command" in graceway("drill", "--help").stdout
    assert graceway("drill", "no-such-drill").returncode == 2
    by_hand = graceway("drill", "replica-killed", "--url", "http://127.0.0.1:9")
    assert by_hand.returncode == 2
    assert "replica-killed needs --fault-command: kill one replica" in by_hand.stderr


def test_a_report_of_nothing() -> None:
    done = graceway("report", "--url", "http://127.0.0.1:9")
    assert done.returncode == 3
    assert "no gateway answers at http://127.0.0.1:9" in done.stderr


def test_a_drill_that_is_interrupted_while_it_starts_just_ends() -> None:
    process = subprocess.Popen(
        [*GRACEWAY, "drill", "all"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        maps, until = Path(f"/proc/{process.pid}/maps"), time.monotonic() + 30.0
        # It imports its HTTP client: nothing of it has begun.
        while "aiohttp" not in maps.read_text():
            assert time.monotonic() < until
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    # A shell says 130 of one that the signal ended, too.
    assert process.returncode in (-signal.SIGINT, 130)
    assert "Traceback" not in errors
    assert out == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_bench_that_is_killed_leaves_no_process_behind(number: signal.Signals) -> None:
    process = subprocess.Popen([*GRACEWAY, "bench", "scaling", "--seeds", "200"], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30.0
        while len(left := psutil.Process(process.pid).children()) < 2:
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(number)
        process.wait(15)
        assert psutil.wait_procs(left, timeout=5)[1] == []
    finally:
        process.kill()
        process.wait()
