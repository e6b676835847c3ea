"""Which of an engine's numbered messages count when, on numbers that are written down."""

import pytest

from replicas.event_order import EventOrder, Missed

# What happens: a number that comes live (L) or again (A), a question (?), the end of the answer (.).
# Which numbers are due after each, joined.
CASES = {
    "in order": ("L0 L1 L2", "0|1|2"),
    "nothing came by itself before the engine was asked": ("? A0 A1 . L2", "|0|1||2"),
    "what was answered and comes by itself, too, counts once": ("? L2 A0 A1 A2 . L3", "||0|1|2||3"),
    "what comes meanwhile waits": ("? L2 L3 A0 A1 .", "|||0|1|23"),
    "what is next does not wait for an answer": ("? A0 . L1 ? L2 A2 . L3", "|0||1||2|||3"),
    "a gap is filled": ("L0 L3 ? A1 A2 A3 . L4", "0|||1|2|3||4"),
    "a gap that shows after the question is asked about again": (
        "L0 ? L3 . ? A1 A2 A3 .",
        "0|||||1|2|3|",
    ),
    "two answers to what was asked twice": ("? ? A0 A1 . A0 A1 . L2", "||0|1|||||2"),
    "the engine no longer has its first ones": ("? A7 A8 . L9", "|7|8||9"),
    "nobody answers": ("? . L5 ? .", "||||5"),
    "nobody answers, then all is in order": ("? . L5 ? . L6", "||||5|6"),
}


def played(happens: str) -> list[str]:
    order, due = EventOrder(), []
    for what in happens.split():
        if what == "?":
            order.ask()
            due.append("")
        elif what == ".":
            due.append(_joined(order.over()))
        else:
            take = order.live if what[0] == "L" else order.again
            due.append(_joined(take(int(what[1:]), what[1:].encode())))
    return due


def _joined(messages: list[bytes]) -> str:
    return b"".join(messages).decode()


@pytest.mark.parametrize(("happens", "due"), CASES.values(), ids=CASES)
def test_each_counts_once_and_in_order(happens: str, due: str) -> None:
    assert played(happens) == due.split("|")


@pytest.mark.parametrize(
    "happens",
    [
        "L0 L3 ? .",
        "L0 L3 ? A2 A3 .",
        # The engine was started anew.
        "L0 L1 L0",
        "? A0 A1 . L2 L1",
    ],
)
def test_what_is_lost_for_good_is_said(happens: str) -> None:
    with pytest.raises(Missed):
        played(happens)


def test_what_waits_shows_that_something_is_lacking() -> None:
    order = EventOrder()
    order.live(0, b"")
    assert not order.lacks
    order.live(2, b"")
    assert order.lacks
    assert order.expected == 1
