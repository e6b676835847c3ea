"""What a gateway says of its own time: the part of a refusal that neither the network nor the client had."""

from collections.abc import Iterable
from math import inf

import aiohttp
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

FAMILY, STAGE = "graceway_overhead_seconds", "refuse"


async def own_refusal_s(url: str, q: float) -> float | None:
    """A quantile of the time from a request's last byte to its refusal, as an upper bound; None if nothing was refused."""
    async with aiohttp.ClientSession() as http, http.get(url + "/metrics") as response:
        return bound_of(text_string_to_metric_families(await response.text()), q)


def bound_of(families: Iterable[Metric], q: float) -> float | None:
    """The upper edge of the bucket that the quantile is in."""
    buckets: dict[float, float] = {}
    for sample in (s for f in families if f.name == FAMILY for s in f.samples):
        if sample.name == FAMILY + "_bucket" and sample.labels.get("stage") == STAGE:
            edge = float(sample.labels["le"])
            buckets[edge] = buckets.get(edge, 0.0) + sample.value
    total = buckets.get(inf, 0.0)
    return (
        min((edge for edge, count in buckets.items() if count >= q * total), default=None) if total else None
    )
