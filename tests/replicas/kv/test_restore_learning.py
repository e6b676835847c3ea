"""The decision as it learns, against trying both: replicas and links of many speeds, with noise, from nothing known."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from random import Random

import pytest

from replicas.kv.restore_policy import STALE_S, Link, Prefill, choose

REQUESTS = 150
NOISE = 0.15
"""Of a time, as a standard deviation."""
SPEEDS_TOKENS_PER_S = (200.0, 2_000.0, 20_000.0)
BANDWIDTHS_BYTES_PER_S = (10e6, 100e6, 1e9, 5e9)
SIZES_BYTES_PER_TOKEN = (46_000, 131_000)
T0_S = (0.0005, 0.02)


@dataclass
class Replica:
    """One that really takes this long, and what it has learnt of itself."""

    tokens_per_s: float
    bandwidth_bytes_per_s: float
    bytes_per_token: int
    t0_s: float
    rng: Random
    now: float = 0.0
    link: Link = field(default_factory=Link)
    prefill: Prefill = field(default_factory=Prefill)

    def restore_s(self, tokens: int) -> float:
        return self.t0_s + tokens * self.bytes_per_token / self.bandwidth_bytes_per_s

    def recompute_s(self, tokens: int) -> float:
        # Attention makes it dearer the longer it gets.
        return tokens / self.tokens_per_s * (1 + tokens / 8192)

    def noisy(self, seconds: float) -> float:
        return seconds * max(0.3, self.rng.gauss(1.0, NOISE))

    def request(self) -> bool:
        """One request of any length: whether what was chosen was no slower than the other would have been."""
        tokens = self.rng.randrange(1, 64) * 32
        size = tokens * self.bytes_per_token
        self.link.asked(self.noisy(self.t0_s))
        choice = choose(self.link, self.prefill, 0, tokens, size, self.now)
        restore_s, recompute_s = self.noisy(self.restore_s(tokens)), self.noisy(self.recompute_s(tokens))
        if choice.restores:
            self.link.loaded(size, restore_s, self.now)
        else:
            self.prefill.learn(0, tokens, recompute_s)
        # Others come that Redis knows nothing of.
        other = self.rng.randrange(2, 64) * 32
        self.prefill.learn(0, other, self.noisy(self.recompute_s(other)))
        self.now += self.rng.uniform(0.0, STALE_S / 6)
        return choice.restores == (restore_s <= recompute_s)


def replicas(seed: int) -> Iterator[Replica]:
    for speed, bandwidth, size, t0_s in product(
        SPEEDS_TOKENS_PER_S, BANDWIDTHS_BYTES_PER_S, SIZES_BYTES_PER_TOKEN, T0_S
    ):
        yield Replica(speed, bandwidth, size, t0_s, Random(seed))


@pytest.mark.parametrize("seed", range(2))
def test_the_faster_one_is_chosen_in_nineteen_of_twenty_cases(seed: int) -> None:
    right = [replica.request() for replica in replicas(seed) for _ in range(REQUESTS)]
    share = sum(right) / len(right)
    print(f"{share:.1%} of {len(right)}")
    assert share >= 0.95


def test_a_link_that_gets_slow_is_found_out_and_found_again() -> None:
    subject = Replica(200.0, 1e9, 46_000, 0.0005, Random(1))
    assert all(subject.request() for _ in range(50))
    subject.bandwidth_bytes_per_s = 1e6
    assert sum(subject.request() for _ in range(50)) > 40
    subject.bandwidth_bytes_per_s = 1e9
    subject.now += 20 * STALE_S
    assert sum(subject.request() for _ in range(100)) > 80
