"""`graceway serve` as a process: its one line, its signals, its workers, and that nothing of it stays behind."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

CANNED = "models: {chat: {tiers: [{backend: canned, text: TEXT}]}}\nstate_store: {url: memory}\n"


class Serving:
    """A running `graceway serve`."""

    def __init__(self, process: subprocess.Popen[str], url: str, errors: Path) -> None:
        self.process, self.url, self.errors = process, url, errors

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def ask(self, model: str = "chat", **more: Any) -> str:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], **more}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/status", timeout=10) as answer:
            return dict(json.load(answer))

    def reload(self) -> tuple[int, dict[str, Any]]:
        try:
            with urllib.request.urlopen(f"{self.url}/admin/reload", data=b"", timeout=10) as answer:
                return int(answer.status), json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def log(self) -> str:
        return self.errors.read_text()


class Engine:
    """A simulated engine in a process of its own."""

    def __init__(self, url: str) -> None:
        self.url = url

    def running(self) -> int:
        """How many requests it works on right now."""
        with urllib.request.urlopen(f"{self.url}/sim/stats", timeout=10) as answer:
            return int(json.load(answer)["running"])


@contextmanager
def engine(token_ms: int) -> Iterator[Engine]:
    command = [sys.executable, "-m", "loadtests.engine", "--port", "0", "--token-ms", str(token_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Engine(process.stdout.readline().split()[1])
        finally:
            process.kill()


@contextmanager
def serving(config: Path, *arguments: str) -> Iterator[Serving]:
    errors = config.with_suffix(".log")
    with errors.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "deploy", "serve", "-c", str(config), "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready http://127.0.0.1:"), (line, errors.read_text())
        yield Serving(process, line.split()[1], errors)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def until(condition: Callable[[], Any], seconds: float = 15.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)
    return value


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    return path


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def test_one_line_on_standard_output_and_a_quiet_end(tmp_path: Path) -> None:
    with serving(write(tmp_path, CANNED)) as gateway:
        assert gateway.ask() == "TEXT"
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(10) == 0
        assert gateway.process.stdout is not None
        assert gateway.process.stdout.read() == ""
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", gateway.port)) != 0


def test_what_is_in_flight_is_finished(tmp_path: Path) -> None:
    with engine(token_ms=100) as replica:
        text = f"""\
models:
  chat:
    tiers:
      - {{backend: openai, served_model: m, slots: 8, replicas: [{{url: "{replica.url}"}}]}}
state_store: {{url: memory}}
"""
        with serving(write(tmp_path, text)) as gateway:
            answers: list[str] = []
            thread = threading.Thread(target=lambda: answers.append(gateway.ask(max_tokens=20)))
            thread.start()
            until(lambda: replica.running())
            gateway.process.send_signal(signal.SIGTERM)
            until(lambda: "draining" in gateway.log())
            with pytest.raises((urllib.error.URLError, ConnectionError, http.client.HTTPException)):
                until(lambda: gateway.ask(max_tokens=1) == "never")
            assert gateway.process.wait(20) == 0
            thread.join()
    assert len(answers) == 1
    assert answers[0]


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with engine(token_ms=1000) as replica:
        text = f"""\
models: {{chat: {{tiers: [{{backend: openai, served_model: m, replicas: [{{url: "{replica.url}"}}]}}]}}}}
state_store: {{url: memory}}
"""
        with serving(write(tmp_path, text)) as gateway:

            def ask() -> None:
                with pytest.raises((OSError, http.client.HTTPException)):
                    gateway.ask(max_tokens=60)

            thread = threading.Thread(target=ask)
            thread.start()
            until(lambda: replica.running())
            gateway.process.send_signal(signal.SIGINT)
            until(lambda: "draining" in gateway.log())
            gateway.process.send_signal(signal.SIGINT)
            assert gateway.process.wait(10) == 0
            thread.join()


def test_a_changed_config_is_taken_over_and_a_bad_one_is_not(tmp_path: Path) -> None:
    path = write(tmp_path, CANNED)
    with serving(path) as gateway:
        path.write_text(CANNED.replace("TEXT", "OTHER") + "server: {port: 1}\n")
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: gateway.ask() == "OTHER")
        until(lambda: "a restart is needed for the change of: server.port" in gateway.log())
        assert gateway.status()["config"]["needs_restart"] == ["server.port"]
        path.write_text(CANNED + "nonsense: 1\n")
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: "the one before stays in force" in gateway.log())
        assert f"{path}:3: unknown key 'nonsense'" in gateway.log()
        until(lambda: f"a new config was refused ({path.name}:3), the one before" in gateway.log())
        assert gateway.status()["config"]["refused_because"] == f"{path.name}:3"
        # What waits for a restart does so still.
        assert gateway.status()["config"]["needs_restart"] == ["server.port"]
        assert gateway.ask() == "OTHER"


def test_a_reload_may_be_asked_for_over_http(tmp_path: Path) -> None:
    path = write(tmp_path, CANNED)

    with serving(path) as gateway:
        path.write_text(CANNED.replace("TEXT", "OTHER") + "log: {level: debug}\n")
        assert gateway.reload() == (200, {"reloaded": True, "needs_restart": ["log.level"]})
        assert gateway.ask() == "OTHER"
        path.write_text("models: []\n")
        assert gateway.reload()[0] == 400
        assert gateway.ask() == "OTHER"
        assert gateway.status()["config"]["refused_at"] is not None
        path.write_text(CANNED)
        assert gateway.reload() == (200, {"reloaded": True, "needs_restart": []})
        config = gateway.status()["config"]
        assert (config["refused_at"], config["refused_because"], config["needs_restart"]) == (None, "", [])


def test_a_store_that_is_away_does_not_hold_up_the_start(tmp_path: Path) -> None:
    text = CANNED.replace("memory", "'redis://user:hush@127.0.0.1:9/0'")
    with serving(write(tmp_path, text)) as gateway:
        assert gateway.ask() == "TEXT"
        until(lambda: not gateway.status()["state_store"]["available"])
        assert gateway.status()["state_store"]["url"] == "redis://127.0.0.1:9"
        said = subprocess.run(
            [sys.executable, "-m", "deploy", "status", "--url", gateway.url],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        ).stdout
        assert "state store: redis://127.0.0.1:9, not available since" in said
        assert "hush" not in said + json.dumps(gateway.status())


def test_an_embedded_store_ends_with_it(tmp_path: Path) -> None:
    with serving(write(tmp_path, CANNED.replace("memory", "embedded"))) as gateway:
        store = [process for process in children_of(gateway.process.pid) if "redis" in process.name()]
        assert len(store) == 1
        assert gateway.ask() == "TEXT"
        gateway.process.kill()
        assert psutil.wait_procs(store, timeout=10)[1] == []


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with serving(write(tmp_path, CANNED)) as gateway:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "deploy",
                "serve",
                "-c",
                str(tmp_path / "c.yaml"),
                "--port",
                str(gateway.port),
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.returncode == 4
    assert f"127.0.0.1:{gateway.port} is taken" in done.stderr


def workers_of(gateway: Serving) -> list[psutil.Process]:
    """Those that run; one that has ended and waits to be noticed has no command line any more."""
    found = []
    for process in children_of(gateway.process.pid):
        with suppress(psutil.Error):
            found += [process] if "deploy.worker" in process.cmdline() else []
    return found


def test_workers_share_the_port_and_are_replaced(tmp_path: Path) -> None:
    path = write(tmp_path, CANNED)
    with serving(path, "--workers", "2") as gateway:
        first = workers_of(gateway)
        assert len(first) == 2
        path.write_text("broken: [\n")
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: "the one before stays in force" in gateway.log())
        first[0].kill()
        until(lambda: first[0] not in (now := workers_of(gateway)) and len(now) == 2)
        assert {gateway.ask() for _ in range(10)} == {"TEXT"}
        path.write_text(CANNED.replace("TEXT", "OTHER"))
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: {gateway.ask() for _ in range(10)} == {"OTHER"})
        left = workers_of(gateway)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(15) == 0
        assert not any(p.is_running() for p in left)


def configs_of(gateway: Serving) -> dict[str, dict[str, Any]]:
    """How the config stands in each worker that happens to answer."""
    reports = [gateway.status() for _ in range(20)]
    return {report["gateway"]["id"]: report["config"] for report in reports}


def test_all_workers_tell_how_the_config_stands_and_whoever_is_asked_reloads_for_all(tmp_path: Path) -> None:
    path = write(tmp_path, CANNED)

    def all_say(**told: Any) -> bool:
        found = configs_of(gateway).values()
        return len(found) == 2 and all(told.items() <= config.items() for config in found)

    with serving(path, "--workers", "2") as gateway:
        until(lambda: all_say(refused_because="", needs_restart=[]))
        path.write_text(CANNED.replace("TEXT", "OTHER") + "server: {port: 1}\n")
        assert gateway.reload() == (200, {"reloaded": True, "needs_restart": ["server.port"]})
        until(lambda: all_say(needs_restart=["server.port"]))
        assert {gateway.ask() for _ in range(20)} == {"OTHER"}
        path.write_text("nonsense: 1\n" + CANNED)
        gateway.process.send_signal(signal.SIGHUP)
        until(lambda: all_say(refused_because=f"{path.name}:1", needs_restart=["server.port"]))
        # One that is started later knows it, too.
        first = workers_of(gateway)[0]
        first.kill()
        until(lambda: first not in (now := workers_of(gateway)) and len(now) == 2)
        until(lambda: all_say(refused_because=f"{path.name}:1"))
        assert {gateway.ask() for _ in range(20)} == {"OTHER"}
        path.write_text(CANNED)
        assert gateway.reload()[0] == 200
        until(lambda: all_say(refused_because="", refused_at=None, needs_restart=[]))


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    with serving(write(tmp_path, CANNED), "--workers", "2") as gateway:
        left = workers_of(gateway)
        os.kill(gateway.process.pid, signal.SIGKILL)
        assert psutil.wait_procs(left, timeout=15)[1] == []
