"""The page's policy, and what many watchers cost."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from typing import Any

from gateway.page import FRESH_S, POLLS_PER_STATUS, LiveStatus, load_page


def policy() -> dict[str, str]:
    header = load_page().headers["Content-Security-Policy"]
    return dict(part.split(" ", 1) for part in header.split("; "))


def test_only_what_is_in_the_file_runs() -> None:
    html = load_page().html.decode()
    for tag in ("script", "style"):
        inline = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", html, re.DOTALL)
        assert len(inline) == 1
        digest = b64encode(sha256(inline[0].encode()).digest()).decode()
        assert policy()[f"{tag}-src"] == f"'sha256-{digest}'"
    assert policy()["default-src"] == "'none'"
    assert policy()["frame-ancestors"] == "'none'"
    assert "unsafe" not in " ".join(policy().values())


def test_nothing_comes_from_elsewhere_and_nothing_is_put_in_as_html() -> None:
    html = load_page().html.decode()
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", html)
    assert re.findall(r"https?://[^\"' ]+", html) == ["http://www.w3.org/2000/svg"]
    for way_in in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        " onclick",
        " onload",
    ):
        assert way_in not in html


class Counted:
    """A status that counts how often it was put together."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> dict[str, Any]:
        self.reads += 1
        return {"reads": self.reads}


def test_a_crowd_reads_the_status_once() -> None:
    status = Counted()
    live = LiveStatus(status)
    answers = {live.poll(100.0) for _ in range(POLLS_PER_STATUS)}
    assert answers == {b'{"reads":1}'}
    assert live.poll(100.0 + FRESH_S) == b'{"reads":2}'
    assert status.reads == 2


def test_more_than_a_crowd_is_sent_away() -> None:
    status = Counted()
    live = LiveStatus(status)
    answers = [live.poll(100.0 + n / 1000) for n in range(400)]
    assert answers.count(None) == 400 - POLLS_PER_STATUS
    assert status.reads == 1
    body = live.poll(101.0)
    assert body is not None
    assert json.loads(body) == {"reads": 2}
