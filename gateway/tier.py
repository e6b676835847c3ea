"""One tier, live: its replicas, its queue and its speeds, and the permits that reserve places.

Everything here changes synchronously, between two awaits, so that what a decision saw still holds when it reserves.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from gateway.breakers import Outcome, Pass
from gateway.policy.admission import may_take
from gateway.policy.arrivals import ArrivalRates
from gateway.policy.forecast import Forecast
from gateway.policy.health import Health
from gateway.policy.ladder import Signals
from gateway.policy.patience import first_token_patience_s
from gateway.policy.prefill import PrefillSpeed
from gateway.policy.quantile import DurationQuantiles
from gateway.policy.recent import Recent
from gateway.policy.snapshot import Routable, TierView
from gateway.purse import Purse
from gateway.queue import WaitingRoom
from gateway.replica import EWMA, Replica
from gateway.specs import TierSpec
from replicas.autoscaling.rotation import in_rotation

OFFER_AGAIN_S = 0.02
SPEEDS_S = 0.05
"""How old measured speeds may be in a decision."""
SUSPICION_S = 10.0
"""How long a suspect replica is worth waiting for. A probe decides about it sooner, unless all it hears is that it is busy."""


class Tier:
    """One tier, live."""

    def __init__(self, spec: TierSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.replicas: dict[str, Replica] = {}
        self._last_window: int | None = None
        self.purse: Purse | None = None
        """What it may cost; None for a tier that costs nothing by the token."""
        self.room = WaitingRoom()
        self.ttfts = DurationQuantiles()
        self.prefill = PrefillSpeed()
        self.arrivals = ArrivalRates()
        self.recent = Recent()
        self.signals = Signals()
        self.pressure = 0.0
        self.share = 1.0
        """Of the traffic that wants this tier; the ladder says so."""
        self.held_because = ""
        self._rotation: int | None = None
        self._admits = (1.0, 1.0, 1.0)
        self.service_s = 0.0
        self._deviation_s = 0.0
        self._started_at: list[float] = []
        self._is_offering_again = False
        self._routable = Routable()
        self._recheck_at = 0.0
        self._view = TierView(spec.name, spec.has_replicas)
        self._view_until = 0.0
        self._patience_s = spec.slo.ttft_s
        self._patience_until = 0.0

    @property
    def window(self) -> int | None:
        """Tokens of prompt and answer together that some replica takes, or took that is gone; None when nobody said."""
        told = [r.max_model_len for r in self.replicas.values() if r.max_model_len is not None]
        return self.spec.max_model_len or max(told, default=self._last_window)

    def drop(self, name: str) -> Replica:
        """Takes a replica out."""
        self._last_window = self.window
        return self.replicas.pop(name)

    def changed(self) -> None:
        """A replica's health, breaker or presence changed."""
        self._recheck_at = self._view_until = self._patience_until = 0.0
        self.room.poke()

    def freed(self) -> None:
        """A place has come free."""
        self._routable.freed()

    def routable(self, now: float) -> Routable:
        """The replicas that may get requests. Cached until something changes or a back-off ends."""
        if now >= self._recheck_at:
            replicas = self.replicas.values() if self.purse is None or not self.purse.is_spent else ()
            ready = self._taking_requests([r for r in replicas if r.is_routable(now)])
            self._routable = Routable(ready, absent=self.replicas.values())
            self._recheck_at = now + (0.05 if len(self._routable) < len(replicas) else 3600.0)
        return self._routable

    def _taking_requests(self, ready: list[Replica]) -> list[Replica]:
        """Of those that could: all, or, where others stand by, those in rotation and those that leave after them."""
        if self.spec.in_rotation is None:
            return ready
        leaving = [r for r in ready if r.is_leaving]
        staying = [r for r in ready if not r.is_leaving]
        return [*leaving, *in_rotation(staying, self._rotation or self.spec.in_rotation)]

    def rotate(self, count: int | None) -> None:
        """Takes the scaler's word for how many are to take requests; None: as configured."""
        if count != self._rotation:
            self._rotation = count
            self.changed()

    def stands_by(self, replica: Replica, now: float) -> bool:
        """Whether it could take requests and is to take none yet."""
        return self.spec.in_rotation is not None and (
            replica.is_routable(now) and replica not in self.routable(now)
        )

    def view(self, now: float) -> TierView:
        """The tier at this moment. Speeds may be a little old, the queue and the replicas never are."""
        routable, ahead = self.routable(now), self.room.ahead()
        view = self._view
        if view.routable is not routable or view.queued_ahead != ahead or now >= self._view_until:
            view = self._view = TierView(
                name=self.name,
                has_replicas=self.spec.has_replicas,
                routable=routable,
                ttft_slo_s=self.spec.slo.ttft_s,
                queued_ahead=ahead,
                line=self.room,
                starting=0 if len(routable) else self._starting(now),
                starting_until=inf if len(routable) else self._starting_until(),
                prefill=self.prefill,
                forecast=self._forecast(),
                outranking_per_s=self.arrivals.outranking_per_s(now),
                ttft_s=self.ttfts.quantile(0.9) or 0.0,
                admits=self._admits,
                held_because=self.held_because,
                continues=self.spec.resume != "none",
                sheddable_slo_s=self.spec.slo.sheddable_ttft_s or 0.0,
                is_asleep=self.spec.wakes and not any(r.is_registered_ready for r in self.replicas.values()),
            )
            self._view_until = now + SPEEDS_S
        return view

    def _starting(self, now: float) -> int:
        return sum(r.slots or 1 for r in self.replicas.values() if now < _expected_until(r.health))

    def _starting_until(self) -> float:
        return max((_expected_until(r.health) for r in self.replicas.values()), default=inf)

    def _forecast(self) -> Forecast:
        spread = min(1.0, self._deviation_s / self.service_s) if self.service_s else 0.0
        return Forecast(self._started_at, self.service_s, spread)

    def allot(self, share: float, because: str, admits: tuple[float, float, float]) -> None:
        """Takes the share that the ladder lets it have, as parts of critical, standard and sheddable requests."""
        if share != self.share or admits != self._admits:
            self.share, self.held_because, self._admits = share, because, admits
            self._view_until = 0.0

    def begin(self, now: float, size_bytes: int) -> float:
        """A request took a slot; when it may be taken to have begun, by how much longer its prompt is than others'."""
        expected_s = self.prefill.expected_s(size_bytes, now)
        since = now if expected_s is None else now + expected_s - self.prefill.mean_s
        insort(self._started_at, since)
        return since

    def end(self, since: float, now: float, is_whole: bool) -> None:
        """The request that `begin` took to have begun at `since` gave its slot back; a whole answer tells how long one takes."""
        del self._started_at[bisect_left(self._started_at, since)]
        if not is_whole:
            return
        off_s = now - since - self.service_s if self.service_s else 0.0
        self.service_s = self.service_s + EWMA * off_s if self.service_s else now - since
        self._deviation_s += EWMA * (abs(off_s) - self._deviation_s)

    @contextmanager
    def probing(self, replica: Replica) -> Iterator[None]:
        """While the known prompt runs."""
        replica.lend(1)
        try:
            yield
        finally:
            replica.lend(-1)
            self.offer(replica, asyncio.get_running_loop().time())

    def offer(self, replica: Replica, now: float) -> None:
        """Gives a replica's free places to who waits. What nobody may have now, as it is kept, is offered again soon."""
        is_usable = replica.is_routable(now)
        self.room.offer(replica, is_usable, lambda rank: may_take(self.view(now), rank, now))
        if not self._is_offering_again and is_usable and len(self.room) and _has_place(replica):
            self._is_offering_again = True
            loop = asyncio.get_running_loop()
            loop.call_later(OFFER_AGAIN_S, self._offer_again, loop)

    def _offer_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_offering_again = False
        for replica in self.replicas.values():
            if _has_place(replica):
                self.offer(replica, loop.time())

    def first_token_patience_s(self, now: float) -> float:
        """How long a request may wait for its first token before it is tried elsewhere."""
        if now >= self._patience_until:
            self._patience_s = first_token_patience_s(self.ttfts, self.spec.slo.ttft_s)
            self._patience_until = now + SPEEDS_S
        return self._patience_s


def _expected_until(health: Health) -> float:
    """Until when a replica is worth waiting for that takes no requests."""
    if health.state == "starting":
        return inf
    return health.since + SUSPICION_S if health.state == "suspect" else 0.0


def _has_place(replica: Replica) -> bool:
    return replica.slots is None or replica.in_flight < replica.slots


class Permit:
    """A reserved place on a replica. Settles once, with the outcome that the breaker and the tier then learn from."""

    __slots__ = ("_began_at", "_pass", "_tier", "is_settled", "replica", "since")

    def __init__(self, tier: Tier, replica: Replica, pass_: Pass, now: float, size_bytes: int) -> None:
        self._tier, self.replica, self._pass, self.since = tier, replica, pass_, now
        self._began_at = tier.begin(now, size_bytes)
        self.is_settled = False

    def settle(self, outcome: Outcome, now: float) -> None:
        """Gives the place back; later calls change nothing."""
        if self.is_settled:
            return
        self.is_settled = True
        replica = self.replica
        replica.in_flight -= 1
        replica.breaker.leave(self._pass, outcome, now)
        if outcome in (Outcome.SUCCESS, Outcome.SLOW, Outcome.FAILURE):
            self._tier.recent.ended(replica.replica, outcome is Outcome.FAILURE, now)
        self._tier.end(self._began_at, now, outcome in (Outcome.SUCCESS, Outcome.SLOW))
        if self._pass.is_probe:
            self._tier.changed()
        self._tier.offer(replica, now)
