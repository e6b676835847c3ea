"""Open-loop arrivals: their forms as text, their rates, and how they are dealt out."""

from itertools import takewhile

import pytest

from loadtests.arrivals import Form, Share, arrivals, parse_form


def until(form: Form, end_s: float, share: Share | None = None, seed: int = 1) -> list[float]:
    return list(takewhile(lambda at_s: at_s < end_s, arrivals(form, seed, share or Share())))


def between(times: list[float], begins_s: float, ends_s: float) -> int:
    return sum(begins_s <= at_s < ends_s for at_s in times)


def test_constant_arrivals_are_evenly_spaced_and_dealt_out_in_turn() -> None:
    form = parse_form("constant:4")
    assert until(form, 1.0) == [0.0, 0.25, 0.5, 0.75]
    assert until(form, 1.0, Share(1, 2)) == [0.25, 0.75]


@pytest.mark.parametrize(
    ("text", "begins_s", "ends_s", "wanted"),
    [
        ("poisson:50", 0, 100, 5000),
        ("ramp:0,100", 0, 50, 1250),
        ("ramp:0,100", 100, 150, 5000),
        ("spike:10,200", 40, 50, 2000),
        ("spike:10,200", 50, 100, 500),
        ("spike:10,200", 140, 150, 2000),
        ("diurnal:0,100", 40, 60, 1967),
        ("diurnal:0,100", 90, 110, 65),
    ],
)
def test_rates_are_what_the_form_says(text: str, begins_s: float, ends_s: float, wanted: int) -> None:
    """Within four standard deviations of the Poisson process."""
    times = until(parse_form(text, period_s=100.0), 160.0)
    assert abs(between(times, begins_s, ends_s) - wanted) < 4 * wanted**0.5


def test_shares_differ_and_sum_up_to_the_whole() -> None:
    shares = [until(parse_form("poisson:40"), 50.0, Share(index, 4)) for index in range(4)]
    assert abs(sum(map(len, shares)) - 2000) < 4 * 2000**0.5
    assert len({times[0] for times in shares}) == 4
    assert shares[0] == until(parse_form("poisson:40"), 50.0, Share(0, 4))


def test_a_replay_has_a_path_and_a_speed() -> None:
    assert parse_form("replay:a/b.jsonl").path == "a/b.jsonl"
    assert parse_form("replay:a/b.jsonl").speed == 1.0
    assert parse_form("replay:a/b.jsonl,2.5").speed == 2.5


@pytest.mark.parametrize(
    "text", ["often:3", "poisson:", "poisson:0", "ramp:5", "spike:1,2,3", "constant:-1", "constant:x"]
)
def test_what_is_no_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_form(text)
