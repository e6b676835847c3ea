"""Sessions as this gateway knows them: their turns, and the replica that holds each one's state.

The store is the memory that gateways share, not a condition for serving: without it a gateway goes by what it knows and
by rendezvous hashing, which all of them compute alike. What the store did not take, or has lost, is put there again as
soon as it is back.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic

from gateway.turn import NO_TURN, Turn
from state_store.patience import within
from state_store.protocol import StateStore, StateStoreUnavailable
from state_store.session_turns import SessionRecord, bind, step

TTL_S = 3600.0
FRESH_S = 5.0
"""How long a gateway trusts its own copy of a binding before it waits for the store's word."""
DOUBTED_S, DOUBTED_WAIT_S = 30.0, 0.003
"""For so long after the store gave no answer, a request waits for the next one no longer than a store that is well takes.

Its answer counts all the same when it comes; until then a session goes where rendezvous hashing puts it, which is where
it is unless its replica was lost.
"""
KNOWN_SESSIONS = 100_000
PUT_BACK_S = 0.25
PUT_BACK_AT_ONCE = 64
"""Sessions that are put back beside each other, and every so often: an emptied store is filled at a measured pace."""


@dataclass(slots=True)
class _Known:
    as_of: float = -inf
    record: SessionRecord = field(default_factory=SessionRecord)


IsLost = Callable[[str, str], bool]
Count = Callable[[str], None]


def _never(tier: str, replica: str) -> bool:
    return False


def _nobody_counts(what: str) -> None:
    """Where no metrics are kept."""


class Sessions:
    """One model's sessions."""

    def __init__(
        self,
        model: str,
        store: StateStore,
        count_turn: Count = _nobody_counts,
        count_epoch: Count = _nobody_counts,
    ) -> None:
        self._model, self._store = model, store
        self._count_turn, self._count_epoch = count_turn, count_epoch
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._bound: Counter[tuple[str, str]] = Counter()
        self._unsaved: dict[str, None] = {}
        """Sessions of which the store knows less than this gateway, oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._doubted_at = -inf
        self._waiting: set[asyncio.Event] = set()
        """One of each request that waits for the store."""
        self._putting_back: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._known)

    @property
    def unsaved(self) -> int:
        """Sessions of which only this gateway knows all."""
        return len(self._unsaved)

    def bound(self, tier: str, replicas: Iterable[str]) -> dict[str, int]:
        """How many of the sessions that this gateway knows have their state on each of these replicas of the tier."""
        return {replica: count for replica in replicas if (count := self._bound[tier, replica])}

    async def begin(self, session: str, is_lost: IsLost = _never) -> Turn:
        """The next turn of a session. Waits for the store only where the gateway's own copy is old or of no use.

        Args:
            is_lost: whether a tier's replica is gone. A binding to one is read again: another gateway may have moved it.
        """
        if not session:
            return NO_TURN
        known = self._known.get(session) or _Known()
        self._remember(session, known)
        turn = self._next(session, known)
        step = self._spawn(self._step(turn, known))
        if monotonic() - known.as_of >= FRESH_S or _any_lost(known.record, is_lost):
            await self._said(step)
        return turn

    async def _said(self, step: asyncio.Task[None]) -> None:
        """Returns when the store has answered, or is not to be waited for."""
        if monotonic() - self._doubted_at < DOUBTED_S:
            with suppress(TimeoutError):
                async with within(DOUBTED_WAIT_S):
                    await asyncio.wait((step,))
            return
        waits = asyncio.Event()
        step.add_done_callback(lambda _: waits.set())
        self._waiting.add(waits)
        try:
            await waits.wait()
        finally:
            self._waiting.discard(waits)

    def _doubt(self) -> None:
        """The store gave no answer: who waits for it has waited long enough."""
        self._doubted_at = monotonic()
        for waits in self._waiting:
            waits.set()

    def _next(self, session: str, known: _Known) -> Turn:
        """The turn as this gateway counts it, should the answer begin before the store has said anything."""
        before = known.record
        known.record = replace(before, turn=before.turn + 1)
        return Turn(session, before.replicas, known.record.epoch, known.record.turn)

    async def _step(self, turn: Turn, known: _Known) -> None:
        asked = replace(known.record, turn=turn.number - 1)
        try:
            said = await step(self._store, self._model, turn.session, asked, turns=1, ttl_s=TTL_S)
        except StateStoreUnavailable:
            self._doubt()
            self._keep(turn.session)
        else:
            if said.kept == "unconfirmed":
                self._keep(turn.session)
            self._take(turn.session, known, said)
            turn.take(said)
            turn.replicas = known.record.replicas
        self._count_turn(turn.durability)

    def _take(self, session: str, known: _Known, said: SessionRecord) -> None:
        """The store's word: its bindings count, and neither its epoch nor its turn is below what was known."""
        known.as_of, was = monotonic(), known.record
        newest = max((said, was), key=lambda r: (r.epoch, r.turn))
        replicas = {**was.replicas, **said.replicas}
        self._rebind(session, known, replicas)
        known.record = replace(said, epoch=newest.epoch, turn=newest.turn, replicas=replicas)
        if said.cause:
            self._count_epoch(said.cause)
        if was.home and said.home != was.home:
            # Another server, or the same one empty: what else it had may be missing there.
            for other, its in self._known.items():
                if its.record.home == was.home and other != session:
                    self._keep(other)

    def bind(self, turn: Turn, tier: str, replica: str, is_lost: bool) -> None:
        """Pins the session to a replica that served its turn, when it had none in this tier or that one `is_lost`."""
        known = self._known.get(turn.session)
        if not turn.session or known is None:
            return
        bound = known.record.replicas.get(tier)
        if bound is not None and (not is_lost or bound == replica):
            return
        self._rebind(turn.session, known, {**known.record.replicas, tier: replica})
        self._spawn(self._bind(turn, known, tier, replica, is_lost))

    async def _bind(self, turn: Turn, known: _Known, tier: str, replica: str, moves: bool) -> None:
        at = SessionRecord(turn.epoch, turn.number)
        try:
            bound = await bind(
                self._store, self._model, turn.session, at, tier, replica, moves=moves, ttl_s=TTL_S
            )
        except StateStoreUnavailable:
            bound = ""
        if not bound:
            self._keep(turn.session)
        elif bound != replica:
            # Another gateway was first: its binding is the one.
            self._rebind(turn.session, known, {**known.record.replicas, tier: bound})

    def _rebind(self, session: str, known: _Known, replicas: Mapping[str, str]) -> None:
        if known.record.replicas == replicas:
            return
        if self._known.get(session) is known:
            self._count_bound(known.record.replicas, -1)
            self._count_bound(replicas, 1)
        known.record = replace(known.record, replicas=replicas)

    def _count_bound(self, replicas: Mapping[str, str], by: int) -> None:
        for place in replicas.items():
            self._bound[place] += by
            if not self._bound[place]:
                del self._bound[place]

    def _remember(self, session: str, known: _Known) -> None:
        self._known[session] = known
        self._known.move_to_end(session)
        while len(self._known) > KNOWN_SESSIONS:
            gone, forgotten = self._known.popitem(last=False)
            self._count_bound(forgotten.record.replicas, -1)
            self._unsaved.pop(gone, None)

    def _keep(self, session: str) -> None:
        """The store is to be told of this session, as soon as it can be."""
        self._unsaved[session] = None
        if self._putting_back is None or self._putting_back.done():
            self._putting_back = asyncio.get_running_loop().create_task(self._put_back(), name="sessions")

    async def _put_back(self) -> None:
        while self._unsaved:
            await asyncio.sleep(PUT_BACK_S)
            some = list(self._unsaved)[:PUT_BACK_AT_ONCE]
            if await self._put_one_back(some[0]):
                await asyncio.gather(*(self._put_one_back(session) for session in some[1:]))

    async def _put_one_back(self, session: str) -> bool:
        """Whether the store took what is known of it, for good."""
        known = self._known.get(session)
        if known is None:
            self._unsaved.pop(session, None)
            return True
        try:
            said = await step(self._store, self._model, session, known.record, turns=0, ttl_s=TTL_S)
        except StateStoreUnavailable:
            return False
        self._take(session, known, said)
        if said.kept == "unconfirmed":
            return False
        if known.record.turn <= said.turn:
            # Otherwise it had another turn meanwhile, of which the store may know nothing.
            self._unsaved.pop(session, None)
        return True

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settled(self) -> None:
        """Returns when nothing is on its way to the store; what it did not take is not waited for."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Waits a little for writes that are under way."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=1.0)
            for task in late:
                task.cancel()
        if self._putting_back is not None:
            self._putting_back.cancel()
            await asyncio.gather(self._putting_back, return_exceptions=True)


def _any_lost(known: SessionRecord, is_lost: IsLost) -> bool:
    return any(is_lost(tier, replica) for tier, replica in known.replicas.items())
