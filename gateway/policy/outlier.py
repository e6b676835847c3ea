"""Which replicas stand out from their peers, and for how long they stay out (after Envoy's outlier detection)."""

from collections.abc import Mapping
from statistics import median

from gateway.policy.rng import Rng

FACTOR = 3.0
"""A replica stands out when it is this many times slower than the median of the others."""
GAP_FLOOR_S = 0.03
TTFT_FLOOR_S = 0.25
"""Differences below these are noise, whatever the factor."""
LAG_FACTOR = 1.5
"""What a person should look at, long before it is enough for an ejection."""
MAX_DOUBLINGS = 32
"""More than any cap needs; without it, what stays ill for hours ends in a float that overflows."""


def slowest(latency_s: Mapping[str, float], floor_s: float, already_out: int, max_share: float) -> str | None:
    """The replica to eject, by its name, or None. `latency_s` holds those in rotation; at most `max_share` of all may be out."""
    total = len(latency_s) + already_out
    if len(latency_s) < 2 or already_out + 1 > max_share * total:
        return None
    worst = max(latency_s, key=lambda r: latency_s[r])
    peers = median(v for r, v in latency_s.items() if r != worst)
    return worst if latency_s[worst] > FACTOR * peers + floor_s else None


def lagging(latency_s: Mapping[str, float], floor_s: float) -> frozenset[str]:
    """The replicas that are plainly slower than the median of the others."""
    return frozenset(
        name
        for name, own_s in latency_s.items()
        if len(latency_s) > 1
        and own_s > LAG_FACTOR * median(v for r, v in latency_s.items() if r != name) + floor_s
    )


def ejection_s(times: int, base_s: float, max_s: float, rng: Rng) -> float:
    """How long the `times`-th ejection in a row lasts at least: doubling, capped, with up to a quarter of jitter."""
    doublings = min(max(times - 1, 0), MAX_DOUBLINGS)
    return min(base_s * 2.0**doublings, max_s) * (1.0 + rng.random() / 4)
