"""The live fleet: replicas with their health, breaker, counts and measured speeds, and the permits that reserve places.

Everything here changes synchronously, between two awaits, so that what a decision saw still holds when it reserves.
"""

import asyncio
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import pybreaker

from gateway.breakers import Breaker, Outcome, Pass
from gateway.http_client import Connection, ConnectionPool, ExchangeFailed, Origin
from gateway.policy.admission import may_take
from gateway.policy.arrivals import ArrivalRates
from gateway.policy.facts import RANK, Facts
from gateway.policy.forecast import Forecast
from gateway.policy.health import Health, State, after_signal
from gateway.policy.ladder import Signals
from gateway.policy.limit import INITIAL, Limit, Sample, limit_of
from gateway.policy.patience import first_token_patience_s
from gateway.policy.prefix import PrefixIndex
from gateway.policy.quantile import DurationQuantiles
from gateway.policy.recent import Recent
from gateway.policy.rendezvous import digest
from gateway.policy.snapshot import ReplicaView, Routable, Snapshot, TierView
from gateway.queue import WaitingRoom
from gateway.specs import BreakerSpec, TierSpec

EWMA = 0.15
OFFER_AGAIN_S = 0.02
SPEEDS_S = 0.05
"""How old measured speeds may be in a decision."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica is and what it takes, however it was found: in the config or in the registry."""

    replica: str
    url: str
    served_model: str
    zone: str = ""
    slots: int | None = None
    api_key: str | None = None

    def is_same_server(self, other: "Place") -> bool:
        return (self.url, self.served_model) == (other.url, other.served_model)


class Stream:
    """One request on a replica, from the first byte sent to the last one read."""

    __slots__ = ("connection", "is_blocked", "is_movable", "last_token_at")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_blocked = False
        """Whether it waits for a client that reads slowly, which says nothing about the replica."""
        self.last_token_at = 0.0
        """0 before the first token."""
        self.is_movable = False
        """Whether it can go on elsewhere."""


def _nobody_cares() -> None:
    """Of a replica that belongs to no tier."""


class Replica:
    """One replica, live. Satisfies `ReplicaView`."""

    def __init__(
        self, place: Place, breaker: Breaker, changed: Callable[[], None], limit: Limit | None = None
    ) -> None:
        self.place, self.breaker, self._changed, self._limit = place, breaker, changed, limit
        self._learnt_slots = None if limit is None else INITIAL
        self.freed: Callable[[], None] = _nobody_cares
        """Told whenever a place comes free."""
        self._in_flight = 0
        self.replica, self.zone = place.replica, place.zone
        self.digest = digest(place.replica)
        self.origin = Origin.of(place.url)
        self.pool = ConnectionPool(self.origin)
        self.health = Health()
        self._probes_running = 0
        self.ttft_s = 0.0
        self.recent_gaps: deque[float] = deque(maxlen=16)
        self.recent_ttfts: deque[float] = deque(maxlen=8)
        self.gaps = DurationQuantiles()
        self.last_token_at = 0.0
        self.streams: set[Stream] = set()
        self.takes_token_ids = True
        self.max_model_len: int | None = None
        self.ejections = 0
        self.out_until = 0.0
        self.not_before = 0.0
        """Its own Retry-After, monotonic seconds."""
        self.probe_s = 0.0
        self.is_registered_ready = True
        """False while the supervisor of a managed replica says that it is anything but ready."""
        self.was_probed = asyncio.Event()
        self.kick = asyncio.Event()
        """Set when a probe should run at once."""

    @property
    def in_flight(self) -> int:
        """Requests that have a place on it, from here."""
        return self._in_flight

    @in_flight.setter
    def in_flight(self, count: int) -> None:
        if count < self._in_flight:
            self.freed()
        self._in_flight = count

    def lend(self, places: int) -> None:
        """Gives places to the known prompt, or takes them back (negative)."""
        self._probes_running += places
        self.freed()

    @property
    def slots(self) -> int | None:
        """Places for requests: as configured, or else as learnt; None is no limit. The known prompt takes one while it
        runs, or a request would wait for it in the engine."""
        slots = self.place.slots or self._learnt_slots
        return None if slots is None else max(1, slots - self._probes_running)

    def is_routable(self, now: float) -> bool:
        return self.health.is_ready and now >= self.not_before and self.breaker.admits(now)

    def become(self, health: Health) -> None:
        """Takes a new health; the tier's routable list follows."""
        if health.is_ready and not self.health.is_ready:
            # What was measured before it left rotation says nothing about it now.
            self.recent_gaps.clear()
            self.recent_ttfts.clear()
        self.health = health
        self._changed()

    def learn(self, ttft_s: float, began_at: float, now: float, *, was_dropped: bool = False) -> None:
        """Where nobody says how many requests it takes at once, first tokens and push-backs do."""
        if self._limit is not None and self.place.slots is None:
            sample = Sample(began_at, now, ttft_s, self.in_flight, was_dropped)
            self._learnt_slots = self._limit.update(sample)
            self.freed()

    def retune(self, place: Place) -> None:
        """Takes what changed about a server that is the same."""
        self.place, self.zone = place, place.zone
        self._changed()

    def signal(self, state: State, reason: str, now: float) -> None:
        """Traffic showed that something is wrong: out at once, and a probe at once."""
        self.become(after_signal(self.health, state, reason, now))
        self.kick.set()

    def back_off(self, until: float) -> None:
        """Honours a Retry-After."""
        self.not_before = max(self.not_before, until)
        self._changed()

    def break_streams(self, failure: str, only_movable: bool = False) -> None:
        """Ends its exchanges now, so that their streams go on elsewhere."""
        for stream in list(self.streams):
            if stream.is_movable or not only_movable:
                stream.connection.fail(ExchangeFailed(failure, f"{self.replica} was given up"))

    def on_token(self, stream: Stream, now: float) -> None:
        """A stream advanced: one read that held at least one token."""
        if stream.last_token_at:
            gap_s = now - stream.last_token_at
            self.gaps.add(gap_s)
            self.recent_gaps.append(gap_s)
        stream.last_token_at = self.last_token_at = now

    def on_first_token(self, ttft_s: float) -> None:
        self.recent_ttfts.append(ttft_s)
        self.ttft_s += EWMA * (ttft_s - self.ttft_s) if self.ttft_s else ttft_s


class Tier:
    """One tier, live."""

    def __init__(self, spec: TierSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.replicas: dict[str, Replica] = {}
        self.room = WaitingRoom()
        self.ttfts = DurationQuantiles()
        self.arrivals = ArrivalRates()
        self.recent = Recent()
        self.signals = Signals()
        self.pressure = 0.0
        self.share = 1.0
        """Of the traffic that wants this tier; the ladder says so."""
        self.held_because = ""
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
            replicas = self.replicas.values()
            self._routable = Routable(r for r in replicas if r.is_routable(now))
            self._recheck_at = now + (0.05 if len(self._routable) < len(replicas) else 3600.0)
        return self._routable

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
                forecast=self._forecast(),
                outranking_per_s=self.arrivals.outranking_per_s(now),
                ttft_s=self.ttfts.quantile(0.9) or 0.0,
                admits=self._admits,
                held_because=self.held_because,
            )
            self._view_until = now + SPEEDS_S
        return view

    def _forecast(self) -> Forecast:
        spread = min(1.0, self._deviation_s / self.service_s) if self.service_s else 0.0
        return Forecast(self._started_at, self.service_s, spread)

    def allot(self, share: float, because: str, admits: tuple[float, float, float]) -> None:
        """Takes the share that the ladder lets it have, as parts of critical, standard and sheddable requests."""
        if share != self.share or admits != self._admits:
            self.share, self.held_because, self._admits = share, because, admits
            self._view_until = 0.0

    def begin(self, now: float) -> None:
        """A request took a slot."""
        insort(self._started_at, now)

    def end(self, since: float, now: float, is_whole: bool) -> None:
        """The request that began at `since` gave its slot back; a whole answer tells how long one takes."""
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


def _has_place(replica: Replica) -> bool:
    return replica.slots is None or replica.in_flight < replica.slots


class Permit:
    """A reserved place on a replica. Settles once, with the outcome that the breaker and the tier then learn from."""

    __slots__ = ("_pass", "_tier", "is_settled", "replica", "since")

    def __init__(self, tier: Tier, replica: Replica, pass_: Pass, now: float) -> None:
        self._tier, self.replica, self._pass, self.since = tier, replica, pass_, now
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
            self._tier.recent.ended(outcome is Outcome.FAILURE, now)
        self._tier.end(self.since, now, outcome in (Outcome.SUCCESS, Outcome.SLOW))
        if self._pass.is_probe:
            self._tier.changed()
        self._tier.offer(replica, now)


class Fleet:
    """All tiers of one model."""

    def __init__(
        self, model: str, tiers: Iterable[TierSpec], breaker: BreakerSpec, rng: Random, zone: str
    ) -> None:
        self.model, self._breaker_spec, self._rng, self._zone = model, breaker, rng, zone
        self.listeners: list[pybreaker.CircuitBreakerListener] = []
        self.tiers: dict[str, Tier] = {}
        self.prefixes = PrefixIndex()
        self.apply(tiers, breaker)

    def apply(self, specs: Iterable[TierSpec], breaker: BreakerSpec) -> None:
        """Takes a new ladder. Replicas that stay keep their state; those that go serve what they have and nothing more."""
        self._breaker_spec = breaker
        old, self.tiers = self.tiers, {}
        for spec in specs:
            tier = old.get(spec.name) or Tier(spec)
            tier.spec = spec
            self.tiers[spec.name] = tier
            if spec.backend == "openai":
                self.place(tier, static_places(spec))
        for tier in old.values():
            tier.changed()

    def place(self, tier: Tier, places: Mapping[str, Place]) -> list[Replica]:
        """Makes the tier consist of these replicas; those that are new.

        A replica of which only the zone, the slots or the key changed stays what it is, in rotation if it was.
        """
        for name, place in places.items():
            known = tier.replicas.get(name)
            if known is not None and known.place != place and known.place.is_same_server(place):
                known.retune(place)
        for name in [n for n, r in tier.replicas.items() if places.get(n) != r.place]:
            replica = tier.replicas.pop(name)
            replica.become(Health("draining", "removed", replica.health.since))
            replica.pool.close()
        new = [self._replica(tier, place) for name, place in places.items() if name not in tier.replicas]
        tier.replicas.update((r.replica, r) for r in new)
        if new:
            tier.changed()
        return new

    def _replica(self, tier: Tier, place: Place) -> Replica:
        name = f"{self.model}/{tier.name}/{place.replica}"
        breaker = Breaker(name, self._breaker_spec, self._rng, self.listeners)
        replica = Replica(place, breaker, tier.changed, limit_of(tier.spec.limit, tier.spec.slo.ttft_s))
        replica.freed = tier.freed
        return replica

    def arrived(self, facts: Facts, decided_tier: str, now: float) -> None:
        """A new request wanted a place in every tier down to the one that it was given; in all, if in none."""
        for tier in list(self.tiers.values())[: facts.lowest_tier + 1]:
            tier.arrivals.add(RANK[facts.priority], now)
            if tier.name == decided_tier:
                return

    def is_lost(self, tier_name: str, replica: str) -> bool:
        """Whether a session's replica can't have it now."""
        tier = self.tiers.get(tier_name)
        return tier is None or replica not in tier.replicas or not tier.replicas[replica].health.is_ready

    def snapshot(
        self, now: float, may_retry: bool, bindings: Mapping[str, str], promised: str = ""
    ) -> Snapshot:
        views = [t.view(now) for t in self.tiers.values()]
        return Snapshot(views, may_retry, bindings, self._zone, self.prefixes, promised)

    def reserve(self, tier_name: str, chosen: ReplicaView, now: float) -> Permit | None:
        """Takes the place that a decision assigned; None when its breaker has no probe left, so decide again.

        Called in the same step as the decision, before any await.
        """
        tier = self.tiers[tier_name]
        replica = tier.replicas[chosen.replica]
        try:
            pass_ = replica.breaker.enter(now)
        except pybreaker.CircuitBreakerError:
            tier.changed()
            return None
        replica.in_flight += 1
        tier.begin(now)
        if pass_.is_probe:
            tier.changed()
        return Permit(tier, replica, pass_, now)

    async def wait(
        self, tier_name: str, facts: Facts, replica: str, tried: frozenset[str], until: float
    ) -> bool:
        """Waits for a place in the tier (on `replica`, when named; on none of `tried`), or until `until`; then decide again.

        Whether a place is promised, if that decision comes in the same step.
        """
        tier = self.tiers[tier_name]
        return await tier.room.wait(RANK[facts.priority], facts.deadline, replica, until, tried)


def static_places(spec: TierSpec) -> dict[str, Place]:
    """The replicas that the config lists, by host and port."""
    places = {}
    for endpoint in spec.replicas:
        name = Origin.of(endpoint.url).host_header
        name = name if name not in places else endpoint.url
        places[name] = Place(
            name, endpoint.url, spec.served_model or "", endpoint.zone, spec.slots, spec.api_key
        )
    return places
