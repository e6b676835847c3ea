"""How the benches of KV blocks judge what they measured, on numbers that are written down."""

from random import Random

import pytest

from deploy import bench_kv_codecs
from deploy.bench_kv_codecs import TOKENS
from deploy.bench_kv_cost import interval
from deploy.bench_kv_transport import Row, claims, rotated
from state_store.kv.block_format import Codec


@pytest.mark.parametrize(
    ("samples", "low", "high"),
    [
        ([0.03] * 9, 0.03, 0.03),
        ([0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06], 0.01, 0.05),
        # One round in which the machine was busy moves nothing.
        ([0.02] * 8 + [0.9], 0.02, 0.02),
    ],
)
def test_between_which_the_true_median_lies(samples: list[float], low: float, high: float) -> None:
    assert interval(samples, Random(1)) == (low, high)


def test_more_rounds_tell_more() -> None:
    rng = Random(2)
    noisy = [0.03 + rng.uniform(-0.2, 0.2) for _ in range(200)]
    few, many = interval(noisy[:10], Random(1)), interval(noisy, Random(1))
    assert many[1] - many[0] < few[1] - few[0]
    assert many[0] < 0.05


def rows(load: float) -> list[Row]:
    rates = {"our sockets, load": load, "redis-py, load, one MGET": 0.5, "redis-py, load, a GET each": 1.3}
    rates |= {"our sockets, save": 2.0, "redis-py, save, a SET each": 0.5}
    return [Row(name, (rate * 1e9, rate * 0.9e9), 0.2, 0.3) for name, rate in rates.items()]


def test_what_is_claimed_of_the_transport() -> None:
    assert [holds for holds, _ in claims(rows(load=1.8))] == [True, True, True]
    assert [holds for holds, _ in claims(rows(load=1.4))] == [False, True, False]
    assert "0.30 in Redis" in rows(1.0)[0].text


def test_only_a_codec_without_loss_has_to_change_nothing() -> None:
    def row(codec: Codec, *agreed: int) -> bench_kv_codecs.Row:
        return bench_kv_codecs.Row(codec, 400_000, [0.3, 0.5], [*agreed])

    assert row("lz4", TOKENS, TOKENS).is_as_wanted
    assert not row("lz4", TOKENS, TOKENS - 1).is_as_wanted
    assert row("fp8", 3, TOKENS).is_as_wanted
    assert "1 of 2 answers the same" in row("fp8", 3, TOKENS).text


def test_each_way_is_the_first_in_turn() -> None:
    assert [rotated("abc", by) for by in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]
