"""How long to wait for the next sign of life: of a replica's streams, and of a first token."""

from gateway.policy.quantile import DurationQuantiles

MIN_GAP_S = 0.3
GAP_FACTOR = 3.0
FIRST_TOKEN_FACTOR = 4.0
MIN_SAMPLES = 20
MIN_HEDGE_S = 0.02


def gap_patience_s(gaps: DurationQuantiles, itl_slo_s: float, prefill_s: float) -> float:
    """Silence of a replica that decodes, after which it counts as hung: three times its own p99.9 gap, at least 0.3 s.

    `prefill_s` is added while the replica also reads prompts, which holds up its decoding. Before there are samples the
    SLO stands in for the quantile.
    """
    p999 = gaps.quantile(0.999) if gaps.total >= MIN_SAMPLES else None
    return max(MIN_GAP_S, GAP_FACTOR * (itl_slo_s if p999 is None else p999)) + prefill_s


def first_token_patience_s(ttfts: DurationQuantiles, ttft_slo_s: float) -> float:
    """Silence after a request was sent, after which it is tried elsewhere: four times the tier's p99, from 0.3 s to the SLO."""
    p99 = ttfts.quantile(0.99) if ttfts.total >= MIN_SAMPLES else None
    if p99 is None:
        return ttft_slo_s
    return min(max(MIN_GAP_S, FIRST_TOKEN_FACTOR * p99), ttft_slo_s)


def hedge_after_s(ttfts: DurationQuantiles, ttft_slo_s: float) -> float:
    """Silence after which a second prefill is worth its cost (Dean and Barroso, The tail at scale): the tier's p95."""
    p95 = ttfts.quantile(0.95) if ttfts.total >= MIN_SAMPLES else None
    return ttft_slo_s / 2 if p95 is None else max(p95, MIN_HEDGE_S)
