"""The short cut for plain events: it must say what the long way says, or nothing."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.journal import Journal, enter
from gateway.leg import Leg
from gateway.request import Request
from gateway.sse import EventSplitter, frame
from gateway.template import PlainEvents, learn


def event(text: str, ids: list[int] | None, **more: Any) -> bytes:
    choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    if ids is not None:
        choice["token_ids"] = ids
    return orjson.dumps(
        {"id": "x", "object": "chunk", "created": 1, "model": "m", "choices": [choice | more]}
    )


def journal(*, asked_ids: bool, stream: bool = True) -> Journal:
    made = Journal(Request("chat", {}, "m", "r", 1, stream=stream))
    made.begin(Leg("/v1/chat/completions", {}, asked_ids=asked_ids))
    return made


def told(made: Journal, *reads: list[bytes]) -> list[bytes]:
    """What the client gets for events that come in these reads."""
    out: list[bytes] = []
    for payloads in reads:
        assert enter(made, [frame(payload)[:-2] for payload in payloads], out) is None
    return unframed(out)


def told_the_long_way(made: Journal, payloads: list[bytes]) -> list[bytes]:
    out: list[bytes] = []
    for payload in payloads:
        made.take(payload, out)
    return unframed(out)


def unframed(out: list[bytes]) -> list[bytes]:
    return [orjson.dumps(orjson.loads(data)) for data in EventSplitter().feed(b"".join(out))]


TEXTS = st.one_of(
    st.text(min_size=1, max_size=8), st.sampled_from(['"', '"},"logprobs', "\\", "a\nb", "é", "🚑", "]}"])
)
IDS = st.one_of(st.none(), st.lists(st.integers(0, 50_000), max_size=3))


@pytest.mark.parametrize("asked_ids", [True, False])
@given(
    st.lists(
        st.tuples(TEXTS, IDS, st.sampled_from([{}, {"finish_reason": "stop"}, {"extra": "e"}])), max_size=12
    ),
    st.data(),
)
def test_the_short_cut_says_what_the_long_way_says(
    asked_ids: bool, parts: list[tuple[str, list[int] | None, dict[str, str]]], data: st.DataObject
) -> None:
    payloads = [event(text, ids, **more) for text, ids, more in parts]
    short, long = journal(asked_ids=asked_ids), journal(asked_ids=asked_ids)
    cut = data.draw(st.integers(0, len(payloads)))
    assert told(short, payloads[:cut], payloads[cut:]) == told_the_long_way(long, payloads)
    assert (short.ids, short.said, short.tokens) == (long.ids, long.said, long.tokens)
    assert (short.safe_ids, short.finish_reason) == (long.safe_ids, long.finish_reason)


@given(
    st.lists(
        st.tuples(TEXTS, IDS, st.sampled_from([{}, {"finish_reason": "stop"}, {"extra": "e"}])), max_size=12
    )
)
def test_an_answer_in_one_piece_is_the_same(
    parts: list[tuple[str, list[int] | None, dict[str, str]]],
) -> None:
    payloads = [event(text, ids, **more) for text, ids, more in parts]
    short, long = journal(asked_ids=True, stream=False), journal(asked_ids=True, stream=False)
    told(short, payloads), told_the_long_way(long, payloads)
    assert short.whole() == long.whole()


def test_a_plain_stream_takes_the_short_cut() -> None:
    made = journal(asked_ids=True)
    told(made, [event(" one", [1]), event(" two", [2]), event(" three", [3])])
    assert made._template is not None
    fits, odd = frame(event(" four", [4]))[:-2], frame(event(' "', [4]))[:-2]
    assert made._template.read([odd, fits, fits, odd, fits], 1) == PlainEvents([b" four"] * 2, [4, 4])


@pytest.mark.parametrize(
    "other",
    [
        event("x", [1, 2]),
        event("x", None),
        event("", [1]),
        event('say "x"', [1]),
        event("x", [1], finish_reason="stop"),
        event("x", [1], extra="x"),
        event("x", [1]).replace(b'"m"', b'"n"'),
        b'{"error":{"message":"x"}}',
        b"[DONE]",
        event("x", [1])[:-1],
    ],
)
def test_what_differs_in_more_than_text_and_id_does_not_fit(other: bytes) -> None:
    template = learn(event("hello", [7]), event("hello", None), "hello")
    assert template is not None
    assert template.read([frame(other)[:-2]], 0) == PlainEvents()


def test_a_text_that_stands_twice_makes_no_template() -> None:
    assert learn(event("index", [7]), event("index", None), "index") is None
