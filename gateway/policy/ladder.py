"""The ladder's slow half: signals → pressure → the share of traffic that a tier is let have.

Admission decides each request by what it can foresee. What it can't foresee shows in these signals: then a tier gives up
a part of its traffic, whoever counts least first, and takes it back only once it has been well for a while.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

DOWN_PER_S = 0.25
"""How fast a share falls under full pressure."""
UP_PER_S = 0.1
CALM_S = 5.0
"""How long a tier must have been well before its share rises; after a relapse, twice as long each time."""
MAX_CALM_S = 120.0
FORGIVEN_S = 60.0
"""An incident is over when the tier has been well for that long and has all its traffic."""
LEAST_SHARE = 0.1
"""What a tier keeps under any pressure, while it has replicas: without traffic nobody would see it get well."""
LEAST_SHARES = {"kv": 0.5, "lost": 0.5, "dependencies": 0.8}
"""What it keeps under signals that foretell trouble rather than show it: they are read from elsewhere, and may be wrong."""


@dataclass(frozen=True, slots=True)
class Signals:
    """What is known of one tier, each as a share of what is tolerable: 1 is the limit. None: not known, or too old."""

    ttft: float | None = None
    """p99 of the time to the first token, against the SLO."""
    errors: float | None = None
    """Share of attempts that failed, against a tolerable one."""
    queue: float | None = None
    """p99 of the wait for a slot, against the SLO."""
    kv: float | None = None
    """Use of the KV cache, against nearly full."""
    lost: float | None = None
    """Replicas out of rotation, against three quarters."""
    dependencies: float | None = None
    """Features that the tier's requests need and don't get, against half."""

    def named(self) -> dict[str, float | None]:
        return {
            "ttft": self.ttft,
            "errors": self.errors,
            "queue": self.queue,
            "kv": self.kv,
            "lost": self.lost,
            "dependencies": self.dependencies,
        }


@dataclass(frozen=True, slots=True)
class Rung:
    """One tier's share, and what it has learnt in the present incident."""

    share: float = 1.0
    reason: str = ""
    """The signal that pressed it down; empty while it has all its traffic."""
    calm_since: float | None = None
    relapses: int = 0
    has_risen: bool = False
    """Whether it has begun to take its traffic back."""
    as_of: float = 0.0


def pressure(signals: Signals) -> tuple[float, str]:
    """0 while every known signal is within its limit, 1 at half as much again; and the signal that presses most."""
    known = [(value, name) for name, value in signals.named().items() if value is not None]
    worst, name = max(known, default=(0.0, ""))
    press = min(1.0, max(0.0, (worst - 1.0) / 0.5))
    return press, name if press else ""


def stepped(rung: Rung, press: float, reason: str, now: float) -> Rung:
    """The rung at `now`, under that pressure since it was last stepped."""
    passed_s = min(1.0, now - rung.as_of) if rung.as_of else 0.0
    if press > 0.0:
        return _pressed(rung, press, reason, passed_s, now)
    if rung.share >= 1.0:
        is_over = rung.calm_since is None or now - rung.calm_since >= FORGIVEN_S
        return Rung(as_of=now) if is_over else replace(rung, as_of=now)
    if rung.calm_since is None:
        return replace(rung, calm_since=now, as_of=now)
    if now - rung.calm_since < min(CALM_S * 2.0**rung.relapses, MAX_CALM_S):
        return replace(rung, as_of=now)
    share = min(1.0, rung.share + UP_PER_S * passed_s)
    return replace(rung, share=share, reason=rung.reason if share < 1.0 else "", has_risen=True, as_of=now)


def returned(rung: Rung) -> Rung:
    """The rung of a tier that was gone: it has all its traffic at once, for a loss says nothing about quality. What it
    learnt in the incident stays."""
    return Rung(relapses=rung.relapses, has_risen=rung.has_risen or rung.share < 1.0)


def _pressed(rung: Rung, press: float, reason: str, passed_s: float, now: float) -> Rung:
    least = min(rung.share, LEAST_SHARES.get(reason, LEAST_SHARE))
    share = max(least, rung.share - DOWN_PER_S * press * passed_s)
    return Rung(share, reason, None, rung.relapses + rung.has_risen, False, now)


def admitted(share: float, rank: int, outranking_per_s: Sequence[float], all_per_s: float) -> float:
    """Which part of a rank's requests a tier with that share takes: those that count least go first.

    `outranking_per_s` by rank, as the arrival rates give them; `all_per_s` includes the rank itself and those below.
    """
    if share >= 1.0 or all_per_s <= 0.0:
        return 1.0 if share > 0.0 else 0.0
    above = outranking_per_s[rank] / all_per_s
    upto = (outranking_per_s[rank + 1] if rank < 2 else all_per_s) / all_per_s
    if upto <= above:
        return 1.0 if share > above else 0.0
    return min(1.0, max(0.0, (share - above) / (upto - above)))
