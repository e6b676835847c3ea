"""Replicas, tiers and snapshots as literals."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from gateway.policy.facts import Facts
from gateway.policy.forecast import Forecast
from gateway.policy.rendezvous import digest
from gateway.policy.route import Context, Route, best, free_slot, not_tried, predicted_wait, session, zone
from gateway.policy.snapshot import Routable, Snapshot, TierView

ROUTE = Route((not_tried, free_slot), ((session, 4.0), (predicted_wait, 2.0), (zone, 0.5)), best)
"""The shipped defaults."""


@dataclass(frozen=True)
class R:
    """A replica as policy sees it; 8 slots."""

    replica: str
    in_flight: int = 0
    slots: int | None = 8
    zone: str = ""
    ttft_s: float = 0.0

    def first_token_s(self, size_bytes: int) -> float:
        return self.ttft_s

    @property
    def digest(self) -> int:
        return digest(self.replica)


def tier(
    name: str,
    *replicas: R,
    slo: float = 1.0,
    ahead: tuple[int, int, int] = (0, 0, 0),
    forecast: Forecast = Forecast(),  # noqa: B008 - frozen
    outranking_per_s: tuple[float, float, float] = (0.0, 0.0, 0.0),
    asleep: bool = False,
) -> TierView:
    """A tier with these routable replicas."""
    return TierView(name, True, Routable(replicas), slo, ahead, forecast, outranking_per_s, is_asleep=asleep)


def starting(name: str, places: int, ahead: tuple[int, int, int] = (0, 0, 0), until: float = inf) -> TierView:
    """A tier whose replicas are about to be there."""
    return TierView(name, True, queued_ahead=ahead, starting=places, starting_until=until)


def every(gap_s: float, now: float = 100.0) -> Forecast:
    """Eight slots, one of which comes free each `gap_s`, the first of them `gap_s` after `now`."""
    return Forecast([now - 8 * gap_s + gap_s * n for n in range(1, 9)], 8 * gap_s)


def own(name: str) -> TierView:
    """A tier that the gateway serves itself."""
    return TierView(name, False)


def ladder(
    *tiers: TierView, may_retry: bool = True, bindings: dict[str, str] | None = None, zone: str = ""
) -> Snapshot:
    return Snapshot(tiers, may_retry, bindings or {}, zone)


def facts(**changes: object) -> Facts:
    """A request that arrived at 100 s, has a minute, and accepts every tier."""
    fields = {"model": "m", "arrived_at": 100.0, "deadline": 160.0, "lowest_tier": 9, **changes}
    return Facts(**fields)  # type: ignore[arg-type]


def context(
    *replicas: R,
    bound: str = "",
    preferred: Sequence[str] = (),
    tried: Sequence[str] = (),
    zone: str = "",
    slo: float = 1.0,
) -> Context:
    return Context(facts(), tier("t", *replicas, slo=slo), bound, tuple(preferred), frozenset(tried), zone)
