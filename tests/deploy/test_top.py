"""`graceway top`: one frame as text, and the command in a real terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from rich.console import Console

from deploy.status_view import render_status
from deploy.top import frame

Json = dict[str, Any]
GRACEWAY = [sys.executable, "-m", "deploy"]
AT = 1_760_000_000.0


SPANS = {"prefill": {"p50_s": 0.04, "p99_s": 0.2}, "gap": {"p50_s": None, "p99_s": None}}


PINNED: Json = {"allotted": 0.4, "held_because": "pinned", "override_ends_in_s": 120.2}


def replica(name: str, **more: Any) -> Json:
    base = {"replica": name, "zone": "a", "state": "ready", "reason": "", "in_flight": 1, "slots": 8}
    return {**base, "breaker": "closed", "spans": SPANS, "lags": [], **more}


def tier(name: str, *replicas: Json, **more: Any) -> Json:
    base = {
        "name": name,
        "backend": "openai",
        "quality": 1.0,
        "serving": True,
        "share_60s": 0.0,
        "waiting": 0,
        "slo_ttft_s": 1.0,
    }
    return {
        **base,
        "ttft_p99_s": 0.5,
        "waiting_by_priority": {"critical": 0},
        "replicas": list(replicas),
        **more,
    }


def report(**more: Any) -> Json:
    down = replica("h:1", state="down", reason="refused [x]", breaker="open")
    primary = tier("primary", down, serving=False, ttft_p99_s=2.5, waiting=3)
    money = {"amount": 20.0, "per": "day", "spent": 18.5, "left": 1.5, "is_spent": False, "resets_in_s": 60}
    small = tier("small", replica("h:2"), quality=0.6, share_60s=0.75, budget=money, **PINNED)
    standing = {"level": "degraded", "text": "chat is served by small because so", "cost": "mean quality 0.6"}
    chat = {
        "standing": {**standing, "since": AT - 60},
        "tiers": [primary, small],
        "answers_60s": 40,
        "sheds_60s": {"queue_full": 7},
        "degraded_60s": {"no_replica": 30},
        "streams_60s": {},
        "given_up_60s": {"context": 3, "max_tokens": 2},
        "shares_1h": {
            "bucket_s": 60,
            "tiers": {"primary": [4] * 57 + [0, 2, 0], "small": [0] * 57 + [0, 2, 4]},
            "sheds": {},
        },
    }
    event = {
        "at": AT - 9,
        "last_at": AT - 5,
        "kind": "ladder",
        "text": "primary [of] chat can't serve",
        "count": 2,
    }
    base = {"now": AT, "gateway": {"id": "g"}, "ready": True, "draining": False, "models": {"chat": chat}}
    store = {"url": "redis", "available": False, "since": AT - 30, "error": "no answer"}
    return {**base, "state_store": store, "sessions": 5, "events": [event], **more}


def drawn(report: Json, width: int = 130, **more: Any) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(frame("http://g:8000", report, width, **more))
        return console.export_text()


@pytest.mark.parametrize(
    "line",
    [
        r"http://g:8000 +ready +as of \d\d:\d\d:\d\d",
        r" DEGRADED +chat is served by small because so since \d\d:\d\d:\d\d",
        r"mean quality 0\.6",
        r"1\. primary can't serve +1 +0% +97% +2\.5 s +3 +█{57}·▄ ",
        r"\(pinned by an operator,\s+for 2 min more\)",
        # Three quarters of the answers, and seven requests in 47 were refused.
        r"2\. small may have 40% +0\.6 +64% +3% +500 ms +0 +[ ]{57}·▄█",
        r"h:1 +primary +a +down \(refused \[x\]\) +open +1 of 8 +40/200 ms +–",
        r"lower tier because: no replica could serve 30; left out of answers: context 3,\s+max_tokens 2",
        r"refused: queue full 7;\s+money for small: 1\.5 left of 20 per day",
        r"state store: redis, not available since \d\d:\d\d:\d\d \(no answer\); requests go on without it",
        r"\d\d:\d\d:\d\d +primary \[of\] chat can't serve \(2 times\)",
    ],
)
def test_a_frame_says(line: str) -> None:
    text = drawn(report())
    assert re.search(line, text), text


REFUSED = {
    "in_force_since": AT - 600,
    "refused_at": AT - 60,
    "refused_because": "g.yaml:3, g.yaml:9",
    "needs_restart": ["server.port", "log.level"],
}
WAITING = "config: only a restart applies what changed in server.port, log.level"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({**REFUSED, "refused_at": None, "needs_restart": []}, []),
        ({**REFUSED, "refused_at": None}, [WAITING]),
        (
            {**REFUSED, "needs_restart": []},
            [
                r"config: the file was refused at \d\d:\d\d:\d\d \(g\.yaml:3, g\.yaml:9\), "
                r"the one of \d\d:\d\d:\d\d stays in force; `graceway check -c FILE` says why"
            ],
        ),
        (
            {**REFUSED, "refused_because": ""},
            [r"config: the file was refused at \d\d:\d\d:\d\d, the", WAITING],
        ),
    ],
)
def test_how_the_config_stands_to_its_file(config: Json, told: list[str]) -> None:
    whole = report(config=config)
    with open(os.devnull, "w") as nowhere:
        console = Console(width=200, record=True, file=nowhere)
        render_status("http://g:8000", whole, console)
        status = console.export_text()
    for text in (status, drawn(whole, 200)):
        lines = [line.strip() for line in text.splitlines() if line.startswith("config: ")]
        assert len(lines) == len(told)
        assert all(re.match(wanted, line) for wanted, line in zip(told, lines, strict=True)), lines


def test_a_frame_without_a_gateway_says_so_first() -> None:
    assert (
        drawn(report(), lost="since 12:00:00: refused")
        .splitlines()[0]
        .startswith(" NO ANSWER since 12:00:00: refused. ")
    )


def test_a_frame_fits_a_narrow_terminal() -> None:
    text = drawn(report(), 60)
    assert max(map(len, text.splitlines())) <= 60
    assert "1. primary can't" in text


def test_the_usual_terminal_breaks_neither_an_address_nor_a_word() -> None:
    body = report()
    (down,) = body["models"]["chat"]["tiers"][0]["replicas"]
    down |= {"replica": "10.100.100.100:8000", "reason": "refused"}
    text = drawn(body, 80)
    assert re.search(
        r"^primary *\n10\.100\.100\.100:8000 +down \(connection +1 of 8 +40/200 ms +–", text, re.MULTILINE
    )
    assert {"(connection", "refused),", "breaker", "open"} <= set(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_what_is_worst_comes_first_and_before_all_tables() -> None:
    """Whoever looks at 24 lines sees every model that is ill, and the store."""
    body = report()
    well = {
        **body["models"]["chat"],
        "standing": {"level": "best", "text": "good is served by primary", "cost": ""},
    }
    down = {
        **body["models"]["chat"],
        "standing": {"level": "down", "text": "bad can't be served", "cost": ""},
    }
    body["models"] = {"good": well, "chat": body["models"]["chat"], "bad": down}
    lines = drawn(body, 80, height=24).splitlines()
    assert len(lines) <= 24
    said = [line.strip() for line in lines]
    assert said[2] == "DOWN  bad can't be served"
    assert said[3].startswith("DEGRADED  chat is served by small because so since")
    assert said[5] == "OK  good is served by primary"
    assert said[6].startswith("state store: redis, not available")
    assert "What happened, newest first" in said
    assert any("primary [of] chat can't serve (2 times)" in line for line in said)
    assert "the terminal is too low for all" in drawn(body, 80, height=24)
    tall = drawn(body, 80, height=200)
    assert tall.count("1. primary can't serve") == 3
    assert "too low" not in tall


def test_a_frame_that_is_not_live_tells_of_no_keys() -> None:
    assert "q or Ctrl-C ends" not in drawn(report())
    assert "q or Ctrl-C ends" in drawn(report(), height=60)


def test_a_quiet_gateway_has_a_frame() -> None:
    quiet = report(events=[])
    hour = quiet["models"]["chat"]["shares_1h"]
    hour["tiers"] = {name: [0] * 60 for name in hour["tiers"]}
    assert "1. primary" in drawn(quiet)


@contextmanager
def gateway(body: Json) -> Iterator[ThreadingHTTPServer]:
    """A server that answers this status."""

    has_ended = threading.Event()

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if has_ended.is_set():
                self.close_connection = True
                return
            raw = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        has_ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def url_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


class Terminal:
    """`graceway top` in a terminal of its own, which controls it: Ctrl-C there is a signal."""

    def __init__(self, url: str) -> None:
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
        self._pid, self._tty = pty.fork()
        if self._pid == 0:
            os.execvpe(sys.executable, [*GRACEWAY, "top", "--url", url], env)
        self.shown = ""
        self.status: int | None = None

    def _read(self) -> bool:
        """What it has written; False once it has ended."""
        if select.select([self._tty], [], [], 0.1)[0]:
            try:
                self.shown += os.read(self._tty, 65536).decode(errors="replace")
            except OSError:
                return False
        return True

    def shows(self, wanted: str, within_s: float = 20.0) -> None:
        until = time.monotonic() + within_s
        while wanted not in self.shown:
            is_running = self._read()
            assert is_running, self.shown[-3000:]
            assert time.monotonic() < until, self.shown[-3000:]

    def press(self, keys: bytes) -> None:
        os.write(self._tty, keys)

    def ends(self, within_s: float = 10.0) -> int:
        """Its exit status."""
        until = time.monotonic() + within_s
        while self._read():
            assert time.monotonic() < until, "it goes on"
        _, status = os.waitpid(self._pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def close(self) -> None:
        if self.status is None:
            self.signal(signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._tty)


@pytest.fixture
def terminal() -> Iterator[Any]:
    opened: list[Terminal] = []

    def open_terminal(url: str) -> Terminal:
        opened.append(Terminal(url))
        return opened[-1]

    yield open_terminal
    for each in opened:
        each.close()


@pytest.mark.parametrize("key", [b"q", b"Q", b"\x03"])
def test_a_key_ends_it(terminal: Any, key: bytes) -> None:
    with gateway(report()) as server:
        top = terminal(url_of(server))
        top.shows("chat is served by small because so")
        top.press(b"x")  # is nothing
        top.press(key)
        assert top.ends() == 0


def test_a_signal_ends_it(terminal: Any) -> None:
    with gateway(report()) as server:
        top = terminal(url_of(server))
        top.shows("chat is served by small")
        top.signal(signal.SIGINT)
        assert top.ends() == 0


def test_a_sigterm_ends_it_and_gives_the_terminal_back(terminal: Any) -> None:
    with gateway(report()) as server:
        top = terminal(url_of(server))
        top.shows("chat is served by small")
        top.signal(signal.SIGTERM)
        assert top.ends() == 128 + signal.SIGTERM
        # The screen that was there before is shown again, and the cursor.
        assert "\x1b[?1049l" in top.shown
        assert "\x1b[?25h" in top.shown


@pytest.mark.parametrize("width", [30, 40, 55])
def test_a_slim_terminal_still_tells_the_tiers_apart(width: int) -> None:
    text = drawn(report(), width)
    assert max(map(len, text.splitlines())) <= width
    assert re.search(r"^1\. primary .*0%", text, re.M), text
    assert re.search(r"^2\. small", text, re.M), text
    assert re.search(r"^h:1 ", text, re.M), text


def test_it_goes_on_and_says_that_the_gateway_is_gone(terminal: Any) -> None:
    body = report()
    with gateway(body) as server:
        top = terminal(url_of(server))
        top.shows("chat is served by small")
        body["models"]["chat"]["standing"]["text"] = "chat is served by primary"
        top.shows("chat is served by primary")
    top.shows("NO ANSWER since")
    top.press(b"q")
    assert top.ends() == 0


def test_no_gateway_is_said_at_once() -> None:
    done = subprocess.run(
        [*GRACEWAY, "top", "--url", "http://127.0.0.1:9"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "no gateway answers" in done.stderr


def test_without_a_terminal_it_prints_one_frame() -> None:
    with gateway(report()) as server:
        done = subprocess.run(
            [*GRACEWAY, "top", "--url", url_of(server)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0
    assert "chat is served by small" in done.stdout
    assert "\x1b" not in done.stdout
