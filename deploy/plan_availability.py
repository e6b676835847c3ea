"""`graceway plan availability`: how often a fleet answers, from how often its parts fail and how fast they come back.

Replicas fail apart from each other with a constant rate and are repaired apart from each other; domains (zones, nodes)
fail as a whole, with all replicas in them. Sources: the steady state of a birth-death process, as in any text on
reliability (for one of k: 1 − (1 − A)^k).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb, inf, log10

HOUR_S = 3600.0
YEAR_H = 8766.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """The parts of the time from a replica's failure to its next answer, in seconds, each to be measured."""

    detect_s: float
    restart_s: float
    load_s: float
    """Weights into memory."""
    warm_up_s: float

    @property
    def total_s(self) -> float:
        return self.detect_s + self.restart_s + self.load_s + self.warm_up_s


@dataclass(frozen=True, slots=True)
class Domain:
    """What fails together: a zone or a node with so many replicas."""

    replicas: int
    availability: float = 1.0
    """Of the domain itself, apart from its replicas."""


@dataclass(frozen=True, slots=True)
class Availability:
    """A tier's figures."""

    replica: float
    """Share of the time that one replica serves."""
    tier: float
    """Share of the time that enough of them do."""
    service: float
    """The same with what answers below the tier."""
    fleet_mtbf_h: float
    """Hours between two failures of any replica."""
    outage_mtbf_h: float
    """Hours between two outages of the tier by replicas alone; infinite where it can't have one."""

    @property
    def downtime_min_a_year(self) -> float:
        return (1 - self.service) * YEAR_H * 60


def replica_availability(mtbf_h: float, recovery: Recovery) -> float:
    """MTBF ÷ (MTBF + time to recover)."""
    return mtbf_h / (mtbf_h + recovery.total_s / HOUR_S)


def at_least(needed: int, domains: Sequence[Domain], replica: float) -> float:
    """The share of the time that at least `needed` replicas serve, over domains that fail as a whole."""
    up = [1.0]
    for domain in domains:
        alive = _binomial(domain.replicas, replica)
        here = [domain.availability * p for p in alive]
        here[0] += 1 - domain.availability
        up = _convolved(up, here)
    return sum(up[needed:])


def outage_mtbf_h(needed: int, replicas: int, replica: float, mtbf_h: float) -> float:
    """Hours between two times at which fewer than `needed` of independent replicas serve.

    Outages begin when exactly `needed` serve and one of these fails: P(needed up) × needed ÷ MTBF a hour.
    """
    if needed <= 0:
        return inf
    exactly = comb(replicas, needed) * replica**needed * (1 - replica) ** (replicas - needed)
    rate = exactly * needed / mtbf_h
    return 1 / rate if rate > 0 else inf


def availability(
    mtbf_h: float,
    recovery: Recovery,
    domains: Sequence[Domain],
    needed: int = 1,
    below: Sequence[float] = (),
    shared: float = 1.0,
) -> Availability:
    """All figures of a tier. `below` are the availabilities of the tiers that answer when it can't, `shared` of what
    they all depend on."""
    replicas = sum(domain.replicas for domain in domains)
    one = replica_availability(mtbf_h, recovery)
    tier = at_least(needed, domains, one) * shared
    nobody = 1 - at_least(needed, domains, one)
    for lower in below:
        nobody *= 1 - lower
    return Availability(
        replica=one,
        tier=tier,
        service=(1 - nobody) * shared,
        fleet_mtbf_h=mtbf_h / replicas if replicas else inf,
        outage_mtbf_h=outage_mtbf_h(needed, replicas, one, mtbf_h),
    )


def spread(replicas: int, zones: int, zone_availability: float) -> list[Domain]:
    """Replicas over zones as evenly as they go."""
    each, more = divmod(replicas, zones)
    return [Domain(each + (index < more), zone_availability) for index in range(zones)]


def nines(share: float) -> str:
    """`99.97 % (3.5 nines)`."""
    lacking = 1 - share
    if lacking <= 1e-12:
        return "100 %"
    digits = max(2, ceil(-log10(lacking) - 1e-9))
    return f"{share * 100:.{digits}f} % ({-log10(lacking):.1f} nines)"


def report(found: Availability, recovery: Recovery, replicas: int, needed: int) -> list[str]:
    """Lines for a terminal."""
    parts = f"{recovery.detect_s:g} + {recovery.restart_s:g} + {recovery.load_s:g} + {recovery.warm_up_s:g}"
    return [
        f"recovery    {recovery.total_s:g} s (detect + restart + load + warm-up: {parts})",
        f"one replica {nines(found.replica)}",
        f"the tier    {nines(found.tier)}, {needed} of {replicas} needed",
        f"any answer  {nines(found.service)}, {_minutes(found.downtime_min_a_year)} a year without",
        f"a replica fails every {_hours(found.fleet_mtbf_h)}, the tier by replicas alone every "
        f"{_hours(found.outage_mtbf_h)}",
    ]


def _minutes(minutes: float) -> str:
    return f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _hours(hours: float) -> str:
    if hours > 10 * YEAR_H:
        return f"{hours / YEAR_H:,.0f} years"
    return f"{hours / 24:.1f} days" if hours > 72 else f"{hours:.1f} h"


def _binomial(n: int, p: float) -> list[float]:
    return [comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def _convolved(one: Sequence[float], other: Sequence[float]) -> list[float]:
    sums = [0.0] * (len(one) + len(other) - 1)
    for i, p in enumerate(one):
        for j, q in enumerate(other):
            sums[i + j] += p * q
    return sums
