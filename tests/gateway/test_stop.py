"""Stop strings in pieces and across seams, against a reference that looks at one character after another."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.stop import StopMatcher

TEXT = st.text("ab c", max_size=24)
STOPS = st.lists(st.text("ab c", min_size=1, max_size=4), min_size=1, max_size=3)
CUTS = st.lists(st.integers(0, 24), max_size=6)


def reference(stops: list[str], text: str, told: int, include: bool) -> tuple[str, str | None]:
    """What an engine that appends one character at a time says after `told` characters, and the stop string it meets.

    vLLM's rule: the stop string that is complete first counts; of those that end together, the first in the list.
    """
    for end in range(told + 1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[told : max(told, end if include else end - len(stop))], stop
    return text[told:], None


def pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted({min(c, len(text)) for c in cuts}), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def said_by(matcher: StopMatcher, parts: list[str]) -> str:
    said = "".join(matcher.feed(p) for p in parts)
    return said if matcher.hit is not None else said + matcher.flush()


@given(STOPS, TEXT, CUTS, st.booleans())
@example(["abc", "b"], "abc", [], False)
@example(["abc", "bc"], "abc", [], False)
def test_any_split_finds_what_the_reference_finds(
    stops: list[str], text: str, cuts: list[int], include: bool
) -> None:
    matcher = StopMatcher(stops, include=include)
    assert (said_by(matcher, pieces(text, cuts)), matcher.hit) == reference(stops, text, 0, include)


@given(STOPS, TEXT, TEXT, CUTS, st.booleans())
@example(["b", "xyz"], "ab", "c", [], False)
def test_across_a_seam(stops: list[str], told: str, text: str, cuts: list[int], include: bool) -> None:
    """What was told is only looked back at: a stop string that lies wholly in it (`min_tokens` lets it pass) is no hit."""
    matcher = StopMatcher(stops, told, include)
    expected = reference(stops, told + text, len(told), include)
    assert (said_by(matcher, pieces(text, cuts)), matcher.hit) == expected


@given(STOPS, TEXT, TEXT, TEXT, CUTS)
def test_what_was_generated_but_held_back_comes_first(
    stops: list[str], told: str, held: str, text: str, cuts: list[int]
) -> None:
    matcher = StopMatcher(stops, told)
    matcher.hold(held)
    expected = reference(stops, told + held + text, len(told), include=False)
    assert (said_by(matcher, [*pieces(text, cuts), ""]), matcher.hit) == expected


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (["Hello, wor", "ld STO"], ["Hello, wor", "ld "]),
        (["ST", "ay"], ["", "STay"]),
        (["ST", "OP", "more"], ["", "", ""]),
    ],
)
def test_only_what_may_become_a_stop_string_is_held(parts: list[str], said: list[str]) -> None:
    matcher = StopMatcher(["STOP"])
    assert [matcher.feed(p) for p in parts] == said


def test_nothing_is_held_twice() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.feed("a ST") == "a "
    assert matcher.flush() == "ST"
    assert matcher.flush() == ""
