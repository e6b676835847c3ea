"""One replica, live: its health, breaker, counts and measured speeds, and the streams that run on it."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from gateway.breakers import Breaker
from gateway.failure import ExchangeFailed, Failure
from gateway.http_client import Connection, ConnectionPool, Origin
from gateway.policy.elsewhere import Elsewhere
from gateway.policy.health import Health, State, after_signal
from gateway.policy.limit import INITIAL, Limit, Sample, limit_of
from gateway.policy.prefill import PrefillSpeed
from gateway.policy.quantile import DurationQuantiles
from gateway.policy.rendezvous import digest
from replicas.client_tls import NO_FILES, ClientTls, TlsFiles
from replicas.engine_load import Restoring

EWMA = 0.15
"""The weight of the newest sample in a moving mean."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a replica is and what it takes, however it was found: in the config or in the registry."""

    replica: str
    url: str
    served_model: str
    zone: str = ""
    slots: int | None = None
    api_key: str | None = None
    tls: TlsFiles = NO_FILES
    mig_slice: str = ""

    def is_same_server(self, other: "Place") -> bool:
        mine = self.url, self.served_model, self.tls
        return mine == (other.url, other.served_model, other.tls)


class Stream:
    """One request on a replica, from the first byte sent to the last one read.

    `can_move` says whether another replica could go on with it now, or begin it anew.
    """

    __slots__ = ("can_move", "connection", "is_blocked", "is_movable", "last_token_at")

    def __init__(self, connection: Connection, can_move: Callable[[], bool]) -> None:
        self.connection, self.can_move = connection, can_move
        self.is_blocked = False
        """Whether it waits for a client that reads slowly, which says nothing about the replica."""
        self.last_token_at = 0.0
        """0 before the first token."""
        self.is_movable = False
        """Whether it can be gone on with, wherever that is."""


def _is_any(_: Stream) -> bool:
    return True


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
        self.tls = ClientTls(place.tls) if self.origin.tls else None
        self.pool = ConnectionPool(self.origin, self.tls)
        self.health = Health()
        self._probes_running = 0
        self.elsewhere = Elsewhere()
        self.ttft_s = 0.0
        self.prefill = PrefillSpeed()
        self.recent_gaps: deque[float] = deque(maxlen=16)
        self.recent_ttfts: deque[float] = deque(maxlen=8)
        self.gaps = DurationQuantiles()
        self.ttfts = DurationQuantiles(half_life=200)
        self.dispatches = DurationQuantiles(half_life=200)
        """How long it takes to hand it a request."""
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
        self.ready_since = 0.0
        """Unix time, as its supervisor says; 0 for one that nobody supervises."""
        self.is_leaving = False
        """Whether its supervisor says that it goes as soon as another can take over."""
        self.kv_use: float | None = None
        """The part of its KV cache that is in use, as it said at `kv_as_of` (monotonic seconds); None: it doesn't say."""
        self.kv_as_of = 0.0
        self.restoring: Restoring | None = None
        """How it chooses between loading KV blocks and computing them, where they are kept."""
        self.held_blocks: int | None = None
        """Blocks in its engine's prefix cache, where its supervisor follows that."""
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
        if slots is None:
            return None
        # What is learnt from first tokens has others' load in it already.
        others = self.elsewhere.places if self.place.slots else 0
        return max(1, slots - self._probes_running - others)

    @property
    def mine(self) -> int:
        """What the engine has from here, the known prompt included."""
        return self._in_flight + self._probes_running

    def hear(self, elsewhere: Elsewhere) -> None:
        """Takes what others have on it."""
        is_more = elsewhere.places < self.elsewhere.places
        self.elsewhere = elsewhere
        if is_more:
            self.freed()

    def is_routable(self, now: float) -> bool:
        return self.health.is_ready and now >= self.not_before and self.breaker.admits(now)

    def is_out(self, now: float) -> bool:
        """Whether it is held to be ill. One that is full, and pauses as it asked to, is not."""
        return not (self.health.is_ready and self.breaker.admits(now))

    def become(self, health: Health) -> None:
        """Takes a new health; if that is another state, the tier's routable list follows, and who waits decides again."""
        if health.is_ready and not self.health.is_ready:
            # What was measured before it left rotation says nothing about it now.
            self.recent_gaps.clear()
            self.recent_ttfts.clear()
        was, self.health = self.health, health
        if health.state != was.state:
            self._changed()

    def learn(self, ttft_s: float, began_at: float, now: float, *, was_dropped: bool = False) -> None:
        """Where nobody says how many requests it takes at once, first tokens and push-backs do."""
        if self._limit is not None and self.place.slots is None:
            sample = Sample(began_at, now, ttft_s, self.in_flight, was_dropped)
            self._learnt_slots = self._limit.update(sample)
            self.freed()

    def learn_by(self, name: str, ttft_slo_s: float) -> None:
        """Goes on learning how many requests it takes at once, in another way or by another promise."""
        learnt = self._learnt_slots or INITIAL
        self._limit = limit_of(name, ttft_slo_s, learnt)
        self._learnt_slots = None if self._limit is None else learnt
        self.freed()

    def retune(self, place: Place) -> None:
        """Takes what changed about a server that is the same."""
        self.place, self.zone = place, place.zone
        self._changed()

    def stand(self, ready_since: float, is_leaving: bool) -> None:
        """Takes what its supervisor says of its place among the others."""
        if (ready_since, is_leaving) != (self.ready_since, self.is_leaving):
            self.ready_since, self.is_leaving = ready_since, is_leaving
            self._changed()

    def signal(self, state: State, reason: str, now: float) -> None:
        """Traffic showed that something is wrong: out at once, and a probe at once."""
        self.become(after_signal(self.health, state, reason, now))
        self.kick.set()

    def back_off(self, until: float) -> None:
        """Honours a Retry-After."""
        self.not_before = max(self.not_before, until)
        self._changed()

    def break_streams(self, failure: Failure, which: Callable[[Stream], bool] = _is_any) -> None:
        """Ends its exchanges now, so that their streams go on elsewhere."""
        for stream in list(self.streams):
            if which(stream):
                stream.connection.fail(ExchangeFailed(failure, f"{self.replica} was given up"))

    def on_token(self, stream: Stream, now: float) -> None:
        """A stream advanced: one read that held at least one token."""
        if stream.last_token_at:
            gap_s = now - stream.last_token_at
            self.gaps.add(gap_s)
            self.recent_gaps.append(gap_s)
        stream.last_token_at = self.last_token_at = now

    def silence_s(self, now: float) -> float:
        """Since the last token of any stream that decodes on it; 0 where none does."""
        newest = 0.0
        for stream in self.streams:
            if stream.last_token_at > newest and not stream.is_blocked:
                newest = stream.last_token_at
        return now - newest if newest else 0.0

    def first_token_s(self, size_bytes: int) -> float:
        """How long a prompt of that length takes on it, as far as was measured."""
        expected_s = self.prefill.expected_s(size_bytes, self.prefill.as_of)
        return self.ttft_s if expected_s is None else expected_s

    def on_first_token(self, ttft_s: float) -> None:
        self.recent_ttfts.append(ttft_s)
        self.ttfts.add(ttft_s)
        self.ttft_s += EWMA * (ttft_s - self.ttft_s) if self.ttft_s else ttft_s
