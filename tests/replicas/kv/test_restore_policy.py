"""When a prefix is loaded and when it is computed: literal figures to literal choices."""

import pytest

from replicas.kv.restore_policy import STALE_S, Link, Prefill, choose

MB = 1_000_000


def link(bytes_per_s: float, t0_s: float = 0.0, as_of: float = 100.0) -> Link:
    return Link(t0_s, 1 / bytes_per_s, as_of)


def prefill(*steps: tuple[int, int, float]) -> Prefill:
    subject = Prefill()
    for first, tokens, seconds in steps:
        subject.learn(first, tokens, seconds)
    return subject


SLOW_CPU = prefill((0, 1024, 4.0))
BIG_GPU = prefill((0, 8192, 0.4))


@pytest.mark.parametrize(
    ("at", "speed", "tokens", "size_bytes", "restores"),
    [
        (link(1000 * MB), SLOW_CPU, 1216, 56 * MB, True),
        (link(1000 * MB), SLOW_CPU, 32, int(1.5 * MB), True),
        (link(5 * MB), SLOW_CPU, 1216, 56 * MB, False),
        (link(1000 * MB, t0_s=0.5), SLOW_CPU, 32, int(1.5 * MB), False),
        (link(1000 * MB, t0_s=0.5), SLOW_CPU, 1216, 56 * MB, True),
        # An 8B model, 131 kB a token.
        (link(1000 * MB), BIG_GPU, 8192, 1074 * MB, False),
        (link(3500 * MB), BIG_GPU, 8192, 1074 * MB, True),
    ],
)
def test_the_cheaper_one(at: Link, speed: Prefill, tokens: int, size_bytes: int, restores: bool) -> None:
    assert choose(at, speed, 0, tokens, size_bytes, now=101.0).restores is restores


@pytest.mark.parametrize(
    ("at", "speed", "reason"),
    [
        (Link(), SLOW_CPU, "no load measured yet"),
        (link(MB), Prefill(), "no prefill measured yet"),
        (Link(), Prefill(), "no load measured yet"),
    ],
)
def test_what_was_never_measured_is_tried(at: Link, speed: Prefill, reason: str) -> None:
    choice = choose(at, speed, 0, 1216, 56 * MB, now=101.0)
    assert (choice.restores, choice.reason) == (True, reason)


@pytest.mark.parametrize(
    ("bytes_per_s", "age_s", "restores"),
    [
        (8 * MB, 1.0, False),
        (8 * MB, STALE_S + 1, True),
        (1 * MB, STALE_S + 1, False),
        (1 * MB, 4 * STALE_S + 1, True),
    ],
)
def test_an_old_figure_is_tried_again_the_later_the_worse_it_was(
    bytes_per_s: float, age_s: float, restores: bool
) -> None:
    choice = choose(link(bytes_per_s), SLOW_CPU, 0, 1216, 56 * MB, now=100.0 + age_s)
    assert choice.restores is restores


def test_a_slow_load_outweighs_what_was_measured_long_ago() -> None:
    subject = Link()
    subject.loaded(100 * MB, 0.1, now=0.0)
    subject.loaded(100 * MB, 10.0, now=STALE_S + 1)
    assert subject.bytes_per_s == pytest.approx(10 * MB)


def test_a_new_sample_counts_three_tenths_of_the_time_that_it_took() -> None:
    subject = Link()
    subject.loaded(100 * MB, 1.0, now=0.0)
    subject.loaded(100 * MB, 11.0, now=1.0)
    assert subject.predict(100 * MB, 1.0) == pytest.approx(4.0)


def test_loads_that_bring_nothing_make_it_slower_each_time() -> None:
    subject = link(1000 * MB)
    for now in range(10):
        subject.failed(float(now))
    assert not choose(subject, SLOW_CPU, 0, 1216, 56 * MB, now=10.0).restores


def test_waiting_is_not_taken_for_bandwidth() -> None:
    subject = Link()
    subject.asked(0.1)
    subject.loaded(MB, 0.2, now=0.0)
    assert subject.predict(10 * MB, 0.0) == pytest.approx(1.1)


def test_later_tokens_are_dearer() -> None:
    speed = prefill((0, 256, 0.5), (1024, 1024, 8.0))
    assert speed.predict(0, 128) == pytest.approx(0.25, rel=0.01)
    assert speed.predict(1024, 1024) == pytest.approx(8.0, rel=0.01)
    whole = speed.predict(0, 2048)
    assert whole is not None
    assert 8.5 < whole < 16.0


def test_nothing_measured_predicts_nothing() -> None:
    assert (Prefill().predict(0, 100), Link().predict(100, 0.0)) == (None, None)
