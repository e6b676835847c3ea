"""What processes log as data: one line per finished request and per event, and nothing of what was said or of keys."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from deploy import handover
from deploy.log import LogPipe
from gateway.specs import LogSpec
from tests.deploy.test_serve import Serving, engine, serving, until, write
from tests.rig import eventually

KEY = "my-own-key"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def config(url: str, log: str, more: str = "") -> str:
    return f"""
models:
  chat:
    tiers:
      - {{name: primary, backend: openai, served_model: m, replicas: [{{url: "{url}"}}], slots: 4, probe: null}}
      - {{backend: canned, text: TEXT}}
state_store: {{url: memory}}
log: {log}
{more}
"""


def requests(gateway: Serving, count: int) -> list[dict[str, Any]]:
    """The lines of that many requests, once they are there; every line is JSON."""

    def found() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in gateway.log().splitlines()]
        return [line for line in lines if line["message"] == "request"]

    until(lambda: len(found()) >= count)
    assert len(found()) == count
    return found()


def post(gateway: Serving, body: dict[str, Any], **headers: str) -> int:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(
        f"{gateway.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", **names},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


QUESTION = {
    "model": "chat",
    "max_tokens": 7,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "the secret"}],
}


def test_a_line_for_each_request(tmp_path: Path) -> None:
    with (
        engine(token_ms=1) as replica,
        serving(write(tmp_path, config(replica.url, "{format: json}"))) as gateway,
    ):
        known = {
            "x_request_id": "r-1",
            "x_session_id": "s-1",
            "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
        }
        assert post(gateway, {**QUESTION, "stream": True}, x_priority="critical", **known) == 200
        assert post(gateway, {**QUESTION, "model": "none"}) == 404
        served, refused = requests(gateway, 2)
        events = [json.loads(line) for line in gateway.log().splitlines() if '"event"' in line]
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(10) == 0
    timed = {name: served.pop(name) for name in ("time", "ttft_s", "duration_s")}
    assert timed["time"].endswith("+00:00")
    assert 0 < timed["ttft_s"] <= timed["duration_s"] < 10
    assert served == {
        "level": "info", "logger": "graceway.requests", "message": "request", "trace": TRACE, "request": "r-1",
        "session": "s-1", "kind": "chat", "stream": True, "model": "chat", "priority": "critical", "outcome": "served",
        "tier": "primary", "replica": replica.url.removeprefix("http://"), "attempts": 1, "tokens": 7,
    }  # fmt: skip
    assert (refused["outcome"], refused["reason"]) == ("refused", "model_not_found")
    assert any(e["event"] == "health" and "is ready" in e["message"] for e in events)
    # What is said last is not lost.
    assert "draining" in gateway.log().splitlines()[-2] + gateway.log().splitlines()[-1]
    assert "secret" not in gateway.log()


def test_keys_stand_nowhere(tmp_path: Path) -> None:
    digest = subprocess.run(
        [sys.executable, "-c", f"import hashlib; print(hashlib.sha256(b'{KEY}').hexdigest())"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    keys = f"keys: [{{name: ann, sha256: {digest}, tenant: t-1}}]"
    with serving(
        write(tmp_path, config("http://127.0.0.1:9", "{format: json, level: debug}", keys))
    ) as gateway:
        assert post(gateway, QUESTION, authorization=f"Bearer {KEY}") == 200
        assert post(gateway, QUESTION, authorization="Bearer another") == 401
        known, stranger = requests(gateway, 2)
        assert (known["tenant"], known["outcome"]) == ("t-1", "degraded")
        assert (known["tier"], known["reason"]) == ("canned", "no_replica")
        assert "replica" not in known
        assert (stranger["outcome"], stranger["reason"]) == ("refused", "invalid_api_key")
        for secret in (KEY, digest, "another", "secret"):
            assert secret not in gateway.log()


@pytest.mark.parametrize(
    ("log", "has_lines"),
    [
        (LogSpec(), False),
        (LogSpec(format="json"), True),
        (LogSpec(format="json", requests=False), False),
        (LogSpec(requests=True), True),
    ],
)
def test_lines_for_requests_are_a_choice(log: LogSpec, has_lines: bool) -> None:
    assert log.has_requests is has_lines


def test_in_words_and_of_a_level(tmp_path: Path) -> None:
    log = "{format: text, requests: true, level: error}"
    with serving(write(tmp_path, config("http://127.0.0.1:9", log))) as gateway:
        assert post(gateway, QUESTION, x_request_id="r-7") == 200
        line = until(gateway.log)
    assert "graceway.requests: request=r-7 kind=chat model=chat" in line
    assert line.count("\n") == 1


def test_a_pipe_that_nobody_reads_costs_lines_and_no_request(tmp_path: Path) -> None:
    path = write(tmp_path, config("http://127.0.0.1:9", "{format: json}"))
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "deploy", "serve", "-c", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, text=True) as process:
        os.close(writing)
        assert process.stdout is not None
        gateway = Serving(process, process.stdout.readline().split()[1], path)
        # Each line carries a session of 250 characters: 64 KiB of pipe are full after 130 of them.
        for number in range(200):
            assert post(gateway, QUESTION, x_session_id=f"{number:0250}") == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    os.close(reading)


SPEAKS = """
import logging, sys
from deploy.log import begin_log_of_system
from gateway.specs import LogSpec
assert (begin_log_of_system(LogSpec(format="json")) is not None) is (sys.argv[1] == "heard")
for number in range(500):
    logging.getLogger("graceway.test").info("%s says %d", sys.argv[2], number)
"""


async def test_processes_of_a_system_speak_through_one(tmp_path: Path) -> None:
    told: list[bytes] = []
    pipe = LogPipe(tmp_path / "log")
    await pipe.open(told.append)

    async def speak(heard: str, name: str, **environment: str) -> int:
        command = [sys.executable, "-c", SPEAKS, heard, name]
        process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **environment})
        return await process.wait()

    there = {handover.LOG_PIPE: str(pipe.path)}
    assert await asyncio.gather(*(speak("heard", name, **there) for name in "ab")) == [0, 0]

    async def all_came() -> bool:
        return b"".join(told).count(b"\n") >= 1000

    await eventually(all_came)
    lines = [json.loads(line) for line in b"".join(told).splitlines()]
    for name in "ab":
        own = [line["message"] for line in lines if line["message"].startswith(name)]
        assert own == [f"{name} says {number}" for number in range(500)]
    pipe.close()
    assert not pipe.path.exists()
    # Where nobody listens any more, or never did, a process goes on as it was.
    assert await speak("alone", "c", **there) == 0
    assert await speak("alone", "d") == 0
