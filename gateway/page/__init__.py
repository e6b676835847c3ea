"""The live page: one HTML file, the policy under which a browser runs it, and the status that it asks for every second.

However many people watch, the status is put together twice a second at most, and no more than a set number of polls is
answered: watching an incident must not be part of it. Nothing here needs the state store.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Any

import orjson

from gateway.reason_words import REASONS

FRESH_S = 0.5
POLLS_PER_STATUS = 50
"""How many polls one status answers: a hundred people may watch at a second's interval."""
BACK_OFF_S = 5


@dataclass(frozen=True, slots=True)
class Page:
    """A document and its headers."""

    html: bytes
    headers: Mapping[str, str]


class LiveStatus:
    """The status as the page polls it, encoded once for all who watch."""

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read
        self._body = b""
        self._as_of = float("-inf")
        self._left = 0

    def poll(self, now: float) -> bytes | None:
        """The status in JSON, half a second old at most; None when too many ask. `now` is monotonic seconds."""
        if now - self._as_of >= FRESH_S:
            self._body, self._as_of, self._left = orjson.dumps(self._read()), now, POLLS_PER_STATUS
        if self._left <= 0:
            return None
        self._left -= 1
        return self._body


def load_page() -> Page:
    """The page, with a policy that lets run what is in the file and nothing else."""
    html = (files(__name__) / "page.html").read_bytes()
    html = html.replace(b"{/* gateway/reason_words.py */}", orjson.dumps(dict(REASONS)))
    policy = {
        "default-src": "'none'",
        "script-src": _hashes(html, b"script"),
        "style-src": _hashes(html, b"style"),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return Page(html, headers)


def _hashes(html: bytes, tag: bytes) -> str:
    inline = re.findall(rb"<%b>(.*?)</%b>" % (tag, tag), html, re.DOTALL)
    return " ".join(f"'sha256-{b64encode(sha256(text).digest()).decode()}'" for text in inline) or "'none'"
