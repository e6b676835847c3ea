"""Server-sent events from any pieces of bytes."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.sse import MAX_EVENT_BYTES, EventSplitter, EventTooLarge, frame


def parse(pieces: Iterable[bytes]) -> list[bytes]:
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    edges = [0, *sorted({p % (len(data) + 1) for p in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


PLACES = st.lists(st.integers(0, 10_000), max_size=12)
PARTS = st.sampled_from(
    [b"data: ", b"data:", b"data", b": a comment", b"id: 1", b"\n", b"\n\n", b"\r\n", b"\r", b"\r\n\r\n", b" ",
     b'{"x":1}', "é日👋".encode(), b"[DONE]", b"\x00\xff"]
)  # fmt: skip


@given(st.one_of(st.lists(PARTS, max_size=40).map(b"".join), st.binary(max_size=200)), PLACES)
def test_any_split_of_any_bytes_parses_alike(data: bytes, places: list[int]) -> None:
    assert parse(cut(data, places)) == parse([data])


@settings(max_examples=300)
@given(st.lists(PARTS, max_size=30).map(b"".join))
@example(b"data: a\r\r\n\n")
def test_byte_by_byte(data: bytes) -> None:
    assert parse(data[i : i + 1] for i in range(len(data))) == parse([data])


LINES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)


@given(st.lists(LINES.map(str.encode), max_size=8), PLACES, st.sampled_from([b"\n", b"\r\n"]))
def test_what_was_framed_comes_out(payloads: list[bytes], places: list[int], newline: bytes) -> None:
    data = b"".join(frame(p) for p in payloads).replace(b"\n", newline)
    assert parse(cut(data, places)) == payloads


TABLE = [
    (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    (b"data: a\n\r\n", [b"a"]),
    (b"data:a\n\n", [b"a"]),
    (b"data:  a \n\n", [b" a "]),
    (b"data: a\ndata: b\n\n", [b"a\nb"]),
    (b"event: x\nid: 7\nretry: 9\ndata: a\n\n", [b"a"]),
    (b"data: a\nid: 7\n\n", [b"a"]),
    (b": keep-alive\n\n: again\n\ndata: a\n\n", [b"a"]),
    (b": comment\ndata: a\n\n", [b"a"]),
    (b"\n\n\n\ndata: a\n\n\n\n", [b"a"]),
    (b"database: no\n\n", []),
    (b"data: a\n\ndata: unfinished\n", [b"a"]),
    (b"data:\n\n", []),
    (b"", []),
]


@pytest.mark.parametrize(("data", "expected"), TABLE)
def test_table(data: bytes, expected: list[bytes]) -> None:
    assert parse([data]) == expected
    assert parse(data[i : i + 1] for i in range(len(data))) == expected


def test_a_character_split_across_two_reads() -> None:
    wave = "data: 👋\n\n".encode()
    assert [parse([wave[:n], wave[n:]]) for n in range(len(wave) + 1)] == [["👋".encode()]] * (len(wave) + 1)


def test_a_large_event_is_fine_and_one_without_end_is_not() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: " + b"x" * (MAX_EVENT_BYTES - 6)) == []
    (event,) = splitter.feed(b"\n\n")
    assert len(event) == MAX_EVENT_BYTES - 6
    with pytest.raises(EventTooLarge):
        splitter.feed(b"data: " + b"x" * MAX_EVENT_BYTES)
