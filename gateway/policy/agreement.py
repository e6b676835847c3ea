"""How several gateways come to one share of a tier: the one that has run longest steps it, by what all of them see.

Each tells what presses the tier as it sees it, and where its own rung stands. The leader steps by the median of those
who see anything; the others follow its rung. Who is alone, or cut off, steps its own, from where it was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from gateway.policy.ladder import Rung

FOLLOWS_PER_S = 0.5
"""How fast a share comes to the leader's: faster than any share moves, and still no jump."""


@dataclass(frozen=True, slots=True)
class Voice:
    """One gateway's word on one tier. Times are ages, as clocks differ."""

    has_replicas: bool
    """Whether it reaches one: who doesn't, knows nothing of the tier and leads nobody."""
    sees: bool
    """Whether it has traffic by which to judge; who has none is counted in only when it is pressed all the same."""
    press: float
    press_reason: str
    share: float
    reason: str
    calm_s: float | None
    relapses: int
    has_risen: bool


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway that shares the store. `since` is the Unix time of its start."""

    gateway: str
    since: float
    voice: Voice


def voice_of(rung: Rung, press: float, reason: str, now: float, *, has_replicas: bool, sees: bool) -> Voice:
    calm_s = None if rung.calm_since is None else now - rung.calm_since
    return Voice(
        has_replicas, sees, press, reason, rung.share, rung.reason, calm_s, rung.relapses, rung.has_risen
    )


def leader(peers: Iterable[Peer]) -> Peer | None:
    """Who has run longest of those that reach the tier. A newcomer follows before it ever leads."""
    able = [peer for peer in peers if peer.voice.has_replicas]
    return min(able, key=lambda peer: (peer.since, peer.gateway), default=None)


def pooled(voices: Sequence[Voice]) -> tuple[float, str]:
    """The median of what presses, so that one gateway's bad network moves nobody else; and what presses most."""
    heard = [v for v in voices if v.has_replicas and (v.sees or v.press > 0.0)]
    press = median(v.press for v in heard) if heard else 0.0
    reason = max(heard, key=lambda v: v.press).press_reason if press > 0.0 else ""
    return press, reason


def following(rung: Rung, led: Voice, now: float) -> Rung:
    """The rung of a gateway that follows: the leader's, come to without a jump."""
    passed_s = min(1.0, now - rung.as_of) if rung.as_of else 0.0
    most = FOLLOWS_PER_S * passed_s
    share = rung.share + min(most, max(-most, led.share - rung.share))
    return Rung(
        share=share,
        reason=led.reason if share < 1.0 else "",
        calm_since=None if led.calm_s is None else now - led.calm_s,
        relapses=led.relapses,
        has_risen=led.has_risen,
        as_of=now,
    )
