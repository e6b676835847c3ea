"""The fleet as policy sees it: read-only views that live replicas satisfy, and that tests write as literals."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import NamedTuple, Protocol, overload

import numpy as np
import numpy.typing as npt

from gateway.policy.forecast import Forecast

LOOKED_AT = 32


class ReplicaView(Protocol):
    """One replica, read-only."""

    @property
    def replica(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def slots(self) -> int | None:
        """Sequences it decodes at once; None when nobody said."""

    @property
    def in_flight(self) -> int: ...
    @property
    def digest(self) -> int:
        """A 64-bit hash of its name, for rendezvous hashing."""

    def first_token_s(self, size_bytes: int, /) -> float:
        """Expected time to the first token of a prompt of that length that finds a free slot."""


class Prefill(Protocol):
    """How long the first token of a prompt takes, by its length; None while that is not known."""

    def expected_s(self, size_bytes: int, now: float, /) -> float | None:
        """On average."""
        ...

    @property
    def allowance_s(self) -> float:
        """How much longer most of them take at most."""


class Line(Protocol):
    """Who waits for a slot, tenant by tenant."""

    @property
    def promised(self) -> int:
        """Slots that are somebody's who has not taken them yet."""
        ...

    def ahead_of(self, rank: int, tenant: str, weight: float, left_s: float, now: float, /) -> int:
        """How many go before a newcomer of that rank and tenant that waits `left_s`."""
        ...


class Routable(Sequence[ReplicaView]):
    """The replicas of a tier that may get requests, with what makes a thousand of them cheap: lookup by name, and
    their digests as one array (uint64, shape `(len,)`). `absent` are others of the tier, of which only the zone counts."""

    __slots__ = ("_absent", "_by_name", "_by_zone", "_is_full", "_replicas", "digests")

    def __init__(self, replicas: Iterable[ReplicaView] = (), absent: Iterable[ReplicaView] = ()) -> None:
        self._replicas = tuple(replicas)
        self._by_name = {r.replica: r for r in self._replicas}
        self._absent = {r.replica: r for r in absent}
        self._by_zone: dict[str, npt.NDArray[np.intp]] | None = None
        self._is_full = False
        self.digests: npt.NDArray[np.uint64] = np.array([r.digest for r in self._replicas], dtype=np.uint64)

    def free_slots(self) -> int | None:
        """Places that are free now; None when nobody knows."""
        free = 0
        for replica in self._replicas:
            if replica.slots is None:
                return None
            free += max(0, replica.slots - replica.in_flight)
        return free

    def is_full(self) -> bool:
        """Whether there are replicas and none has a place free. A full tier is not looked at again before `freed`."""
        if self._is_full or not self._replicas:
            return self._is_full
        # A loop, as a generator costs more than all that it looks at.
        for replica in self._replicas:
            if replica.slots is None or replica.in_flight < replica.slots:
                return False
        self._is_full = True
        return True

    def freed(self) -> None:
        """A place has come free, or there are more."""
        self._is_full = False

    def named(self, replica: str) -> ReplicaView | None:
        """The replica of that name, if it is routable."""
        return self._by_name.get(replica)

    def zone_of(self, replica: str) -> str:
        """The zone of a replica of the tier, routable or not; empty where it has none or is not known."""
        found = self._by_name.get(replica) or self._absent.get(replica)
        return "" if found is None else found.zone

    def by_zone(self) -> Mapping[str, npt.NDArray[np.intp]]:
        """The places in this sequence that each zone has."""
        if self._by_zone is None:
            zones: dict[str, list[int]] = {}
            for place, replica in enumerate(self._replicas):
                zones.setdefault(replica.zone, []).append(place)
            self._by_zone = {zone: np.array(places, dtype=np.intp) for zone, places in zones.items()}
        return self._by_zone

    @overload
    def __getitem__(self, index: int) -> ReplicaView: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ReplicaView]: ...
    def __getitem__(self, index: int | slice) -> ReplicaView | Sequence[ReplicaView]:
        return self._replicas[index]

    def __iter__(self) -> Iterator[ReplicaView]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)


@dataclass(frozen=True, slots=True)
class TierView:
    """One tier at one moment. `routable` are the replicas that may get requests; others are not listed."""

    name: str
    has_replicas: bool
    """False for a tier that the gateway answers itself (cache, canned)."""
    routable: Routable = field(default_factory=Routable)
    ttft_slo_s: float = 5.0
    queued_ahead: tuple[int, int, int] = (0, 0, 0)
    """Requests that wait for a slot, of the same or a higher rank than critical, standard, sheddable."""
    forecast: Forecast = field(default_factory=Forecast)
    """When slots come free."""
    outranking_per_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Requests a second that come and go before a critical, a standard, a sheddable one."""
    ttft_s: float = 0.0
    """Time to the first token of a request that has a slot, as most have it."""
    admits: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """The parts of critical, standard and sheddable requests that the ladder lets this tier have."""
    held_because: str = ""
    """Why it does not have all of them."""
    continues: bool = True
    """Whether its replicas go on with an answer that broke."""
    starting: int = 0
    """Places of replicas that are about to be there, or only suspected, while none is routable."""
    starting_until: float = inf
    """When the last of them is given up, as far as is known now."""
    prefill: Prefill | None = None
    """The time to the first token by the prompt's length."""
    sheddable_slo_s: float = 0.0
    """What sheddable requests are promised for the first token, where that is not what all are."""
    line: Line | None = None
    """Who waits, by tenant."""
    is_asleep: bool = False
    """Whether it has no replica because nobody asked lately, and gets one when somebody does."""

    def slo_s(self, rank: int) -> float:
        """What requests of that rank are promised for the first token."""
        return (rank == 2 and self.sheddable_slo_s) or self.ttft_slo_s


class Prefixes(Protocol):
    """Which prefix of a prompt a replica holds."""

    def depth(self, replica: str, chain: Sequence[int], /) -> int:
        """How many leading blocks of the chain."""
        ...

    def holders(self, chain: Sequence[int], /) -> Sequence[str]:
        """Replicas that have seen the longest known part of the chain."""
        ...


class Snapshot(NamedTuple):
    """A model's ladder, best tier first."""

    tiers: Sequence[TierView]
    may_retry: bool = True
    """Whether the retry budget allows an attempt beyond the first."""
    bindings: Mapping[str, str] = MappingProxyType({})
    """The session's pinned replica by tier name."""
    zone: str = ""
    prefixes: Prefixes | None = None
    """What replicas have seen of prompts."""
    promised: str = ""
    """The tier in which this request was promised a place, as it was first in the queue."""
