"""`graceway up` on real parts: Ray Serve with HAProxy, vLLM, llama.cpp, Redis. One system serves the whole module."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import openai
import psutil
import pytest

from tests.rig import free_port

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
READY_WITHIN_S = 420.0


class System:
    """A running `graceway up`, and what it has printed; its log too, unless that goes into a file of its own."""

    def __init__(self, config: Path, port: int, log: IO[bytes] | int = subprocess.STDOUT) -> None:
        self.config, self.port = config, port
        self.url = f"http://127.0.0.1:{port}"
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "deploy", "up", "-c", str(config)],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.rstrip() for line in self.process.stdout)

    def has_printed(self, pattern: str) -> bool:
        return any(re.search(pattern, line) for line in self.lines)

    def wait_for(self, pattern: str, within_s: float) -> None:
        def seen() -> bool:
            ended = self.process.poll() is not None
            return self.has_printed(pattern) or (ended and pytest.fail("\n".join(self.lines)))

        until(seen, within_s, lambda: "\n".join(self.lines))

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def engines(self, kind: str) -> list[psutil.Process]:
        """The processes of all engines of a kind, those that serve last."""
        found = []
        for process in self.descendants():
            with suppress(psutil.Error):
                if process.cmdline()[1:3] == ["-m", f"replicas.{kind}_server"]:
                    found += [*process.children(recursive=True), process]
        return found

    def ask(self, **more: Any) -> tuple[dict[str, str], dict[str, Any]]:
        """One answer: its headers and its body."""
        body = {"model": "chat", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps({**body, **more}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return {name.lower(): value for name, value in answer.headers.items()}, json.load(answer)

    def end(self, *signals: int) -> int:
        for signum in signals:
            self.process.send_signal(signum)
        code = self.process.wait(60)
        self._reader.join()
        return code


def until(condition: Callable[[], Any], within_s: float, context: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not come about within {within_s:g} s\n{context()}"
        time.sleep(0.05)


def write_config(folder: Path, port: int, text: str) -> Path:
    path = folder / "up.yaml"
    path.write_text(text.replace("port: 8000", f"port: {port}"))
    return path


def assert_nothing_is_left(processes: list[psutil.Process], ports: list[int]) -> None:
    left = psutil.wait_procs(processes, timeout=5)[1]
    assert not left, left
    for port in ports:
        with socket.socket() as sock:
            assert sock.connect_ex(("127.0.0.1", port)) != 0, port


def listening(processes: list[psutil.Process]) -> dict[int, str]:
    """The TCP ports that processes listen on, each with its address."""
    found = {}
    for process in processes:
        with suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[connection.laddr.port] = connection.laddr.ip
    return found


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    port = free_port()
    config = write_config(tmp_path_factory.mktemp("up"), port, (ROOT / "deploy/local.yaml").read_text())
    with System(config, port) as running:
        try:
            running.wait_for(r"^ready ", READY_WITHIN_S)
            yield running
        finally:
            if running.process.poll() is None:
                running.end(signal.SIGTERM)


def test_it_says_what_happens_until_it_is_ready(system: System) -> None:
    order = [
        "Ray runs",
        "Ray Serve",
        "answers already, degraded, from tier small",
        f"ready {system.url}",
        "curl -s",
    ]
    places = [next(i for i, line in enumerate(system.lines) if part in line) for part in order]
    assert places == sorted(places)


def test_the_printed_command_answers(system: System) -> None:
    command = next(line for line in system.lines if "curl" in line)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_status_shows_the_ladder(system: System) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy", "status", "--url", system.url],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[0] == f"{system.url}: ready"
    assert re.search(r"1\. primary \(vllm, quality 1\): can serve", done.stdout)
    assert re.search(r"2\. small \(llamacpp, quality 0\.\d+\): can serve", done.stdout)


def test_vllms_own_metrics_are_read(system: System) -> None:
    with urllib.request.urlopen(f"{system.url}/status", timeout=10) as answer:
        (primary, *_) = json.load(answer)["models"]["chat"]["tiers"]
    (replica,) = primary["replicas"]
    assert 0 <= replica["engine"]["kv_use"] <= 1
    assert replica["engine"]["age_s"] < 15


def test_everything_listens_on_loopback(system: System) -> None:
    ports = listening(system.descendants())
    assert system.port in ports
    assert {ip.removeprefix("::ffff:") for ip in ports.values()} <= {"127.0.0.1", "::1"}, ports


def test_openais_client_streams_and_does_not(system: System) -> None:
    with openai.OpenAI(base_url=f"{system.url}/v1", api_key="none", max_retries=0) as client:
        ask: dict[str, Any] = {
            "model": "chat",
            "messages": [{"role": "user", "content": "Count to five."}],
            "max_tokens": 16,
            "temperature": 0,
        }
        whole = client.chat.completions.create(**ask)
        streamed = [
            chunk.choices[0].delta.content or ""
            for chunk in client.chat.completions.create(**ask, stream=True)
            if chunk.choices
        ]
        assert whole.choices[0].message.content == "".join(streamed)
        assert len(streamed) > 5
        assert [model.id for model in client.models.list()] == ["chat"]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(**{**ask, "model": "nobody"})


def test_a_client_that_leaves_frees_its_slot(system: System) -> None:
    with openai.OpenAI(base_url=f"{system.url}/v1", api_key="none", max_retries=0) as client:
        story = [{"role": "user", "content": "Tell a very long story."}]
        with client.chat.completions.create(
            model="chat",
            messages=story,
            max_tokens=1500,
            stream=True,  # type: ignore[arg-type]
        ) as stream:
            next(iter(stream))
    until(lambda: in_flight(system) == 0, 5.0)


def in_flight(system: System) -> int:
    with urllib.request.urlopen(f"{system.url}/status", timeout=10) as answer:
        tiers = json.load(answer)["models"]["chat"]["tiers"]
    return sum(replica["in_flight"] for tier in tiers for replica in tier["replicas"])


def test_a_deadline_is_answered_by_the_gateway_not_by_serve(system: System) -> None:
    request = urllib.request.Request(
        f"{system.url}/v1/chat/completions",
        b'{"model": "chat", "messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 900}',
        {"content-type": "application/json", "x-request-timeout-seconds": "0.05", "x-degradation": "never"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    with caught.value as error:
        assert error.code in (429, 503)
        assert error.headers["x-shed-reason"]
        assert json.load(error)["error"]["code"]


def test_a_changed_config_is_taken_over(system: System) -> None:
    before = system.engines("vllm")
    text = system.config.read_text()
    system.config.write_text(text + "  other: {tiers: [{backend: canned, text: TAKEN}]}\n")
    system.process.send_signal(signal.SIGHUP)

    def answer() -> str:
        try:
            return str(system.ask(model="other")[1]["choices"][0]["message"]["content"])
        except urllib.error.HTTPError:
            return ""

    until(lambda: answer() == "TAKEN", 30.0)
    system.config.write_text("models: [\n")
    system.process.send_signal(signal.SIGHUP)
    until(lambda: system.has_printed("the one before stays in force"), 10.0)
    assert answer() == "TAKEN"
    assert system.engines("vllm") == before
    system.config.write_text(text)
    system.process.send_signal(signal.SIGHUP)
    until(lambda: answer() == "", 30.0)


def test_vllm_killed_while_idle(system: System) -> None:
    for process in system.engines("vllm"):
        process.kill()
    asked = time.monotonic()
    headers, _ = system.ask(max_tokens=2)
    took_s = time.monotonic() - asked
    assert (headers["x-served-tier"], bool(headers["x-degraded"])) == ("small", True), (
        headers,
        system.lines[-20:],
    )
    assert took_s < 1.0
    until(lambda: system.ask()[0]["x-served-tier"] == "primary", 120.0, lambda: "\n".join(system.lines))
    assert "x-degraded" not in system.ask()[0]
    assert system.has_printed("chat/primary .*: down")


def test_vllm_killed_under_load(system: System) -> None:
    ends: list[str] = []
    threads = [threading.Thread(target=lambda: ends.append(stream_to_the_end(system.url))) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: in_flight(system) >= 4, 30.0)
    for process in system.engines("vllm"):
        process.kill()
    for thread in threads:
        thread.join()
    assert len(ends) == 8
    assert set(ends) <= {"whole", "declared"}
    until(lambda: system.ask()[0]["x-served-tier"] == "primary", 120.0, lambda: "\n".join(system.lines))


def stream_to_the_end(url: str) -> str:
    """How one stream ended: `whole` with [DONE], `declared` with an error event, or `silent`."""
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "max_tokens": 60,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        events = [line for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    if events[-1] == "data: [DONE]":
        return "whole"
    return "declared" if '"error"' in events[-1] else "silent"


def test_sigterm_leaves_nothing(system: System) -> None:
    processes, ports = system.descendants(), list(listening(system.descendants()))
    assert len(processes) > 10
    home = next(Path(p.cmdline()[-1]) for p in processes if "deploy.ray_system" in p.cmdline())
    assert home.is_dir()
    assert system.end(signal.SIGTERM) == 0
    assert_nothing_is_left(processes, ports)
    assert not home.exists()


CANNED = "server: {port: 8000}\nmodels: {chat: {tiers: [{backend: canned}]}}\n"


@pytest.mark.parametrize("after", ["starting Ray", "Ray runs"])
def test_ctrl_c_twice_while_it_starts_leaves_nothing(after: str, tmp_path: Path) -> None:
    port = free_port()
    with System(write_config(tmp_path, port, CANNED), port) as system:
        system.wait_for(after, 120.0)
        processes = system.descendants()
        assert system.end(signal.SIGINT, signal.SIGINT) == 0
    assert_nothing_is_left(processes, [port])


def test_what_dies_is_replaced_and_a_killed_parent_leaves_nothing(tmp_path: Path) -> None:
    port = free_port()
    with System(write_config(tmp_path, port, CANNED), port) as system:
        system.wait_for("^ready ", 120.0)
        for name in ("redis-server", "ray::ServeReplica:graceway:gateway", "haproxy"):
            victims = [p for p in system.descendants() if is_called(p, name)]
            assert victims
            # HAProxy may be two for a while: the one before lets its last connections end.
            for victim in victims:
                victim.kill()
            until(lambda: answers(system), 30.0, lambda name=name: name)
        [raylet] = [p for p in system.descendants() if is_called(p, "raylet")]
        raylet.kill()
        system.wait_for("starting again", 60.0)
        until(lambda: answers(system), 120.0, lambda: "\n".join(system.lines))
        processes = system.descendants()
        system.process.kill()
    assert psutil.wait_procs(processes, timeout=20)[1] == []
    assert_nothing_is_left(processes, [port])


def is_called(process: psutil.Process, name: str) -> bool:
    """By its program's name, or by what it calls itself. One that has just ended is called nothing."""
    with suppress(psutil.Error):
        return process.name() == name[:15] or process.cmdline()[:1] == [name]
    return False


def answers(system: System) -> bool:
    try:
        system.ask()
    except (OSError, http.client.HTTPException):
        return False
    return True


def test_up_refuses_what_it_can_not_run(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with System(write_config(tmp_path, port, CANNED), port) as system:
            assert system.end() == 4
        assert system.has_printed(f"127.0.0.1:{port} is taken")
