"""Keeps a dead or frozen store from costing every request its timeout.

`StoreBreaker` decides, without a clock of its own; `GuardedStateStore` asks it before each call. The states
and where they are kept are pybreaker's; its `call` isn't used, because it would count a coroutine as done
before it has run.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Protocol, TypeVar

from pybreaker import STATE_CLOSED, STATE_HALF_OPEN, STATE_OPEN, CircuitBreakerStorage, CircuitMemoryStorage

from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.script import Ran, Script

T = TypeVar("T")
STEADY_BACKOFFS = 3
"""How many of the longest back-offs a store must have been well before what it did earlier is forgotten."""


class StoreBreaker:
    """Open after one failure, for a back-off that doubles up to a limit; then one call at a time may try.

    One failure suffices because the store is never needed to serve, and a call to a frozen one costs a whole
    timeout.
    """

    def __init__(
        self,
        *,
        backoff_s: float = 0.2,
        max_backoff_s: float = 5.0,
        rng: random.Random | None = None,
        storage: CircuitBreakerStorage | None = None,
    ) -> None:
        self._first_backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._rng = rng or random.Random()
        self._storage = storage or CircuitMemoryStorage(STATE_CLOSED)
        self._backoff_s = backoff_s
        self._retry_at = 0.0
        self._closed_at = -inf
        self._generation = 0

    @property
    def state(self) -> str:
        """`closed`, `open` or `half-open`, in pybreaker's words."""
        return str(self._storage.state)

    def admit(self, now: float) -> int | None:
        """A ticket for one call, to be given back with how it went; None when it may not be made."""
        if self.state == STATE_CLOSED:
            return self._generation
        if now < self._retry_at:
            return None
        # Should this try never be given back, the next may start after another back-off.
        self._retry_at = now + self._jittered()
        self._move(STATE_HALF_OPEN)
        return self._generation

    @property
    def retry_at(self) -> float:
        """When the next call may try, while it is not closed."""
        return self._retry_at

    def succeed(self, ticket: int, now: float = -inf) -> None:
        if ticket == self._generation and self.state != STATE_CLOSED:
            self._closed_at = now
            self._move(STATE_CLOSED)

    def fail(self, ticket: int, now: float) -> None:
        if ticket != self._generation:
            return
        # One that fails again soon after it was well costs a call its timeout each time: it is trusted later and later.
        is_steady = (
            self.state == STATE_CLOSED and now - self._closed_at > STEADY_BACKOFFS * self._max_backoff_s
        )
        grown_s = min(2 * self._backoff_s, self._max_backoff_s)
        self._backoff_s = self._first_backoff_s if is_steady else grown_s
        self._retry_at = now + self._jittered()
        self._move(STATE_OPEN)

    def _jittered(self) -> float:
        return self._backoff_s * self._rng.uniform(0.75, 1.25)

    def _move(self, state: str) -> None:
        # Calls that began under the old state have no say in the new one.
        self._generation += 1
        self._storage.state = state


def _ignore(_: float) -> None:
    """Of a store that nobody watches."""


def _tried_often() -> StoreBreaker:
    """Where trying costs no call anything."""
    return StoreBreaker(backoff_s=0.1, max_backoff_s=1.0)


class RemoteStateStore(StateStore, Protocol):
    """A store that can fail in parts."""

    @property
    def address(self) -> str:
        """Where it is, as a URL for everybody's eyes."""
        ...

    def place_of(self, group: str, key: str) -> str:
        """Where an entry or a group's values are: what fails together has the same name."""
        ...

    async def probe(self, group: str, key: str) -> None:
        """Writes something at this place. Raises StateStoreUnavailable when it does not take it."""
        ...


_NONSENSE = (AttributeError, LookupError, TypeError, ValueError)
"""What a verb raises over an answer of another shape than its own."""


class GuardedStateStore:
    """A remote store behind breakers; while one is open, every verb for its place raises at once.

    A place is what fails together: all of the store, or one node of a Cluster. Whether it is back is tried beside
    the calls, so that none of them waits for a store that is still away.
    """

    def __init__(
        self,
        store: RemoteStateStore,
        breaker: Callable[[], StoreBreaker] = _tried_often,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self.address = store.address
        self._new_breaker = breaker
        self._breakers: dict[str, StoreBreaker] = {}
        self._probes: dict[StoreBreaker, asyncio.Task[None]] = {}
        self._now = now
        self._wall = wall
        self.is_available = True
        """Whether the last call that was made got its answer, of every place."""
        self.since = wall()
        """Unix time since which `is_available` has been what it is."""
        self.calls = 0
        """Calls that were made, those refused while open not among them."""
        self.failures = 0
        self.refused = 0
        self.last_latency_s = 0.0
        self.took: Callable[[float], None] = _ignore
        """Told how long each call took that was made, whether it got its answer or not, in seconds."""
        self.last_error = ""

    async def get(self, group: str, key: str) -> bytes | None:
        return await self._call(group, "", lambda: self._store.get(group, key))

    async def put(
        self, group: str, key: str, value: bytes, *, ttl_s: float, only_if_absent: bool = False
    ) -> bool:
        return await self._call(
            group, "", lambda: self._store.put(group, key, value, ttl_s=ttl_s, only_if_absent=only_if_absent)
        )

    async def delete(self, group: str, key: str) -> None:
        await self._call(group, "", lambda: self._store.delete(group, key))

    async def scan(self, group: str) -> dict[str, bytes]:
        return await self._call(group, "", lambda: self._store.scan(group))

    async def run(
        self, script: Script, group: str, key: str, arguments: Sequence[bytes | str], *, ttl_s: float
    ) -> Ran:
        return await self._call(
            group, key, lambda: self._store.run(script, group, key, arguments, ttl_s=ttl_s)
        )

    async def append(self, topic: str, value: bytes, *, max_values: int) -> str:
        return await self._call(topic, "", lambda: self._store.append(topic, value, max_values=max_values))

    async def read(self, topic: str, after: str = "") -> list[tuple[str, bytes]]:
        return await self._call(topic, "", lambda: self._store.read(topic, after))

    async def close(self) -> None:
        for probe in self._probes.values():
            probe.cancel()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)
        await self._store.close()

    def _breaker(self, group: str, key: str) -> StoreBreaker:
        place = self._store.place_of(group, key)
        if place not in self._breakers:
            self._breakers[place] = self._new_breaker()
        return self._breakers[place]

    async def _call(self, group: str, key: str, verb: Callable[[], Awaitable[T]]) -> T:
        breaker, begun = self._breaker(group, key), self._now()
        ticket = breaker.admit(begun) if breaker.state == STATE_CLOSED else None
        if ticket is None:
            self.refused += 1
            raise StateStoreUnavailable(f"not tried again yet: {self.last_error}")
        self.calls += 1
        try:
            result = await verb()
        except StateStoreUnavailable as error:
            self._gave_no_answer(breaker, ticket, begun, group, key, str(error))
            raise
        except _NONSENSE as error:
            why = f"an answer that makes no sense: {error!r}"
            self._gave_no_answer(breaker, ticket, begun, group, key, why)
            raise StateStoreUnavailable(why) from error
        self._note_success(breaker, ticket, begun)
        return result

    def _gave_no_answer(
        self, breaker: StoreBreaker, ticket: int, begun: float, group: str, key: str, why: str
    ) -> None:
        """Counts a failure, and has the place tried beside the requests until it is back."""
        self._note_failure(breaker, ticket, begun, why)
        if breaker not in self._probes:
            probe = asyncio.get_running_loop().create_task(self._probe(breaker, group, key), name="store")
            self._probes[breaker] = probe

    async def _probe(self, breaker: StoreBreaker, group: str, key: str) -> None:
        """Tries a place until it is back."""
        try:
            while breaker.state != STATE_CLOSED:
                await asyncio.sleep(max(0.001, breaker.retry_at - self._now()))
                begun = self._now()
                ticket = breaker.admit(begun)
                if ticket is not None:
                    await self._probe_once(breaker, ticket, begun, group, key)
        finally:
            del self._probes[breaker]

    async def _probe_once(
        self, breaker: StoreBreaker, ticket: int, begun: float, group: str, key: str
    ) -> None:
        self.calls += 1
        try:
            await self._store.probe(group, key)
        except StateStoreUnavailable as error:
            self._note_failure(breaker, ticket, begun, str(error))
        else:
            self._note_success(breaker, ticket, begun)

    def _note_failure(self, breaker: StoreBreaker, ticket: int, begun: float, error: str) -> None:
        self.failures += 1
        self.last_error = error
        self._took(begun)
        breaker.fail(ticket, self._now())
        self._set_available(False)

    def _note_success(self, breaker: StoreBreaker, ticket: int, begun: float) -> None:
        self._took(begun)
        breaker.succeed(ticket, self._now())
        self._set_available(all(b.state == STATE_CLOSED for b in self._breakers.values()))

    def _took(self, begun: float) -> None:
        self.last_latency_s = self._now() - begun
        self.took(self.last_latency_s)

    def _set_available(self, is_available: bool) -> None:
        if is_available != self.is_available:
            self.is_available = is_available
            self.since = self._wall()
