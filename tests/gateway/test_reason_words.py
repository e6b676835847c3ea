"""Every reason that a gateway gives has words, and they are the same on the page as in the terminal."""

import json
import re
from typing import get_args

import pytest

from gateway.failure import Failure
from gateway.page import load_page
from gateway.policy.decision import ShedReason
from gateway.policy.ladder import Signals
from gateway.reason_words import REASONS, in_words

HELD = {"pinned", "override", *(f"pressure_{name}" for name in Signals().named())}
STREAMS = {"resumed", "given_up"}


def test_every_reason_has_words_and_nothing_else_has() -> None:
    assert set(REASONS) == {*get_args(Failure), *get_args(ShedReason), *HELD, *STREAMS}


def test_no_words_are_a_programs() -> None:
    assert [words for words in REASONS.values() if "_" in words or not words.strip()] == []
    assert len(set(REASONS.values())) == len(REASONS)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("refused", "connection refused"),
        ("http_503", "answered 503"),
        ("slower than its peers", "slower than its peers"),
        ("", ""),
    ],
)
def test_in_words(reason: str, words: str) -> None:
    assert in_words(reason) == words


def test_the_page_says_the_same() -> None:
    (table,) = re.findall(rb"const REASONS = (\{.*\});", load_page().html)
    assert json.loads(table) == dict(REASONS)
