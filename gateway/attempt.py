"""One attempt on a reserved replica: dispatch, stream, settle."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from itertools import dropwhile
from time import perf_counter
from typing import TypeVar

from fallback_models.answer import Answer
from fallback_models.cache import AnswerCache, is_deterministic
from gateway.breakers import Outcome
from gateway.context import ContextWindow, TooLong
from gateway.course import Course
from gateway.dispatch import Exchange, Patience, Rejected, Take, outcome_of
from gateway.failure import ExchangeFailed
from gateway.fleet import Fleet
from gateway.hedge import Race
from gateway.held_text import held_text
from gateway.journal import Journal, enter
from gateway.kv_durability import UNCONFIRMED, UNCONFIRMED_FRAME, name_turn, promised, until_stored
from gateway.ledger import Ledger
from gateway.leg import Leg
from gateway.legs import (
    CannotContinue,
    Target,
    first_leg,
    is_streamed_inside,
    next_leg,
    shows_first_token,
)
from gateway.lessons import DECLINED, Lessons
from gateway.own_answer import asked_of
from gateway.policy.decision import Serve, Shed
from gateway.policy.retry_budget import RetryBudget
from gateway.purse import Hold, Purse
from gateway.replica import Replica, Stream
from gateway.reply import Reply, Served
from gateway.sse import DONE_FRAME
from gateway.tier import Permit, Tier
from gateway.tokens import count_of
from gateway.trail import Step
from state_store.protocol import StateStore

Told = TypeVar("Told")
Verdict = bool | Shed
"""True: the client has its answer. False: decide again. A refusal: nothing more can be tried."""


@dataclass(slots=True)
class Attempts:
    """Runs attempts for the requests of one model."""

    fleet: Fleet
    lessons: Lessons
    ledger: Ledger
    budget: RetryBudget
    store: StateStore
    purses: Mapping[str, Purse] = field(default_factory=dict)
    """Of the tiers that cost money."""
    windows: Mapping[str, ContextWindow] = field(default_factory=dict)
    """Of the tiers that leave out what does not fit."""
    cache: AnswerCache | None = None
    """Where complete answers of the best tier are remembered."""

    async def run(self, course: Course, decision: Serve, permit: Permit, reply: Reply) -> Verdict:
        """One attempt on the permit's replica. The permit is settled, whatever happens."""
        began_at = perf_counter()
        outcome, result = Outcome.NEUTRAL, "abandoned"
        course.begin_attempt()
        tokens_before = course.journal.tokens if course.has_tokens else 0
        if course.is_retry:
            self.budget.spend(course.time())
        if not course.has_begun and decision.tier != course.first_tier:
            best = next(iter(self.fleet.tiers))
            spec = self.fleet.tier(decision.tier).spec
            course.cover(None if decision.tier == best else spec.gives_up)
        course.waited(self.fleet.tier(decision.tier).spec.slo, course.time())
        money: Hold | None = None
        try:
            if decision.tier in self.windows:
                await self._narrow(course, decision.tier, permit.replica)
            if (purse := self.purses.get(decision.tier)) is not None:
                money = await purse.hold(course.request)
            served = served_by(self.fleet, course, decision, permit.replica.replica)
            await self._dispatch(course, decision, permit.replica, served, reply)
            outcome, result = self.lessons.succeeded(course, served, permit), ""
        except Rejected as rejected:
            result = "rejected"
            return await self._rejected(course, served, rejected, reply)
        except CannotContinue as reason:
            # Where a replica tells no token ids, only its tokenizer knows by now that none is missing.
            return False if course.has_all_tokens else Shed("no_replica", None, str(reason))
        except ExchangeFailed as failed:
            outcome, result = outcome_of(failed), failed.failure
            self.lessons.failed(course, decision, permit, failed, tokens_before)
            return False
        finally:
            permit.settle(outcome, course.time())
            if money is not None:
                journal = course.journal
                money.settle(result, journal.usage, journal.tokens - tokens_before)
            if result not in DECLINED:
                tokens = course.journal.tokens - tokens_before
                span_id = course.span.span_id if course.span is not None else 0
                step = Step(
                    "attempt", began_at, perf_counter(), decision.tier, permit.replica.replica, result, tokens,
                    tokens_before, course.first_token_at, span_id,
                )  # fmt: skip
                self.ledger.attempt(course, step)
        return True

    async def _narrow(self, course: Course, tier: str, replica: Replica) -> None:
        """Leaves out of a request what the tier's window does not hold.

        Raises:
            TooLong: nothing of it would be left.
        """
        window = self.windows[tier]
        if course.has_begun or course.request.kind == "embedding" or tier == course.first_tier:
            return
        began_at = perf_counter()
        try:
            course.leave_out(*await window.fit(course.request, replica))
            course.trail.passed("context", began_at)
        except TooLong as too_long:
            course.too_long = too_long
            raise

    async def _rejected(self, course: Course, served: Served, rejected: Rejected, reply: Reply) -> Verdict:
        """The replica's 4xx is the client's answer; unless it is about a continuation, which no client ever sent."""
        if not course.journal.leg.is_continuation:
            await reply.whole(served, rejected.body, rejected.status)
            self.ledger.rejected(course, served.tier)
            return True
        if course.has_begun:
            return Shed("no_replica", None, "a replica refused to go on with the answer")
        course.journal = Journal(course.request)
        return False

    async def _dispatch(
        self, course: Course, decision: Serve, replica: Replica, served: Served, reply: Reply
    ) -> None:
        """Sends the request on its way and the answer back to the client."""
        leg = await self._next_leg(course, decision.tier, replica) if course.has_tokens else None
        if leg is None:
            if course.attempts:
                course.journal = Journal(course.request)
            course.first_tier = decision.tier
            leg = first_leg(course.request, _target(self.fleet.tier(decision.tier), replica))
        course.kv_turn = name_turn(leg, self.fleet.tier(decision.tier).spec.kv)
        course.journal.begin(leg)
        course.span = course.trail.for_replica()
        patience = self._patience(course, decision.tier, replica)
        with Exchange(replica, leg, course.request, patience, course.span) as exchange:
            if not exchange.has_connection:
                await exchange.connect()
            if course.race is not None:
                course.race.enter(exchange)
            if is_streamed_inside(course.request):
                await self._stream(course, served, replica, exchange, reply)
            else:
                await self._pass_on(course, served, replica, exchange, reply)

    async def _pass_on(
        self, course: Course, served: Served, replica: Replica, exchange: Exchange, reply: Reply
    ) -> None:
        """An answer in one piece, as the replica gives it."""
        exchange.stream.is_movable = shows_first_token(course.request)
        whole = exchange.read_whole()
        body = await (whole if course.race is None else _raced(course.race, exchange, whole))
        course.journal.take_whole(body)
        if exchange.stream.is_movable:
            now = course.time()
            self.lessons.first_token(course, served.tier, replica, exchange, now)
            replica.on_token(exchange.stream, now)
            if self.cache is not None:
                await self._remember(self.cache, course, served)
        else:
            self.ledger.dispatched(replica, exchange.dispatch_s)
        if served.kv_durability:
            served = await self._settled(course, served)
        await reply.whole(served, body)

    async def _next_leg(self, course: Course, tier: str, replica: Replica) -> Leg | None:
        """The leg that goes on with a broken answer; None to begin anew, as long as the client has nothing of it."""
        if not course.has_begun and tier != course.first_tier:
            return None
        course.journal.rewind()
        if not course.journal.ids:
            course.journal.recount(await count_of(course.journal.said, replica))
        held = await held_text(course.journal, replica)
        try:
            leg = next_leg(course.journal, _target(self.fleet.tier(tier), replica), course.first_tier, held)
            return await self._fitted(course, leg, tier, replica)
        except CannotContinue:
            if course.has_begun:
                raise
            return None

    async def _fitted(self, course: Course, leg: Leg, tier: str, replica: Replica) -> Leg:
        """The leg as another tier's window holds it.

        Raises:
            TooLong
        """
        window = self.windows.get(tier)
        if window is not None and leg.is_splice:
            size_bytes = course.request.size_bytes + len(course.journal.said.encode())
            whole = replace(course.request, body=leg.body, size_bytes=size_bytes)
            fitted, leg.given_up = await window.fit(whole, replica)
            leg.body = fitted.body
            course.given_up = leg.given_up or course.given_up
        return leg

    def _patience(self, course: Course, tier_name: str, replica: Replica) -> Patience:
        now, deadline = course.time(), course.facts.deadline

        def has_others() -> bool:
            return self._has_others(course, replica)

        if not shows_first_token(course.request):
            # Its first byte is its last: only the deadline says how long that may take.
            return Patience(deadline, deadline, deadline, has_others)
        tier = self.fleet.tier(tier_name)
        # A length that was never seen to its first token is known by how long it was waited for: so, twice as long.
        longer_s = 2.0 * tier.prefill.more_s(course.facts.fresh_size_bytes)
        soon_at = now + tier.first_token_patience_s(now) + longer_s
        latest_at = now + tier.spec.slo.ttft_s + longer_s
        return Patience(soon_at, latest_at, deadline, has_others)

    def _has_others(self, course: Course, replica: Replica) -> bool:
        """Whether another replica could be asked, of any tier that the caller accepts; or go on, once the answer has begun."""
        course.keep_to(self.fleet.ladder)
        now, tried = course.time(), {replica.replica, *(attempt.replica for attempt in course.attempts)}
        tiers = list(self.fleet.tiers.values())[: course.facts.lowest_tier + 1]
        if course.has_begun:
            if course.request.inexact_because:
                return False
            if course.first_tier in self.fleet.tiers:
                tiers = list(dropwhile(lambda tier: tier.name != course.first_tier, tiers))
            tiers = [tier for tier in tiers if tier.spec.resume != "none"]
        # Where one pauses because all do, as on one machine, there is nowhere better.
        least_s = replica.silence_s(now) / 2
        return any(
            r.replica not in tried and (not least_s or tier.replicas[r.replica].silence_s(now) < least_s)
            for tier in tiers
            for r in tier.routable(now)
        )

    async def _stream(
        self, course: Course, served: Served, replica: Replica, exchange: Exchange, reply: Reply
    ) -> None:
        """Reads to the end of the leg; the client gets each frame as it comes, if it asked for a stream."""
        journal = course.journal
        exchange.stream.is_movable = not course.request.inexact_because
        take = self._take(course, served, replica, exchange, reply)
        pump = exchange.pump(take)
        await (pump if course.race is None else _raced(course.race, exchange, pump))
        if journal.is_empty:
            raise ExchangeFailed("no_tokens", "the replica ended without generating anything")
        if not journal.finish_reason:
            raise ExchangeFailed("cut", "the answer ended before its finish reason")
        out: list[bytes] = []
        if not journal.has_started:
            journal.release_held(out)
        await self.end(course, served, reply, out)

    def _take(
        self, course: Course, served: Served, replica: Replica, exchange: Exchange, reply: Reply
    ) -> Take:
        """What is done with events in the step in which they are read: journal, measure, pass on."""
        journal, stream, time = course.journal, exchange.stream, course.time
        is_streamed, tokens = course.request.stream, journal.tokens

        def take(events: list[bytes]) -> Awaitable[None] | None:
            nonlocal tokens
            out: list[bytes] = []
            broken = enter(journal, events, out)
            if journal.tokens > tokens or (out and not stream.last_token_at):
                tokens, now = journal.tokens, time()
                if not stream.last_token_at:
                    self.lessons.first_token(course, served.tier, replica, exchange, now)
                replica.on_token(stream, now)
            if journal.has_ended:
                exchange.enough()
            blocked = None
            if out and is_streamed:
                course.has_begun = True
                blocked = reply.push(served, b"".join(out))
            if blocked is not None:
                return _until_read(stream, blocked, broken)
            if broken is not None:
                raise broken
            return None

        return take

    async def end(self, course: Course, served: Served, reply: Reply, out: list[bytes]) -> None:
        """The end of a whole answer: what is still owed, then `[DONE]`; or all of it at once."""
        if self.cache is not None:
            await self._remember(self.cache, course, served)
        if served.kv_durability:
            served = await self._settled(course, served)
        if not course.request.stream:
            await reply.whole(served, course.journal.whole())
            return
        course.journal.close(out)
        if served.kv_durability == UNCONFIRMED:
            out.append(UNCONFIRMED_FRAME)
        out.append(DONE_FRAME)
        await course.push(reply, served, b"".join(out))
        await reply.end()

    async def _settled(self, course: Course, served: Served) -> Served:
        """What can be said of a turn that is kept, now that it is whole: where its tier promises that, it is stored first."""
        if course.kv_turn and not await until_stored(self.store, course.kv_turn):
            served = replace(served, kv_durability=UNCONFIRMED)
        self.ledger.kv_turn(served.tier, served.kv_durability)
        return served

    async def _remember(self, cache: AnswerCache, course: Course, served: Served) -> None:
        """Keeps a complete answer of the best tier for the cache tier."""
        journal, request = course.journal, course.request
        if served.degraded or journal.odd or not is_deterministic(request.body):
            return
        counted = journal.counted_usage()
        answer = Answer(
            journal.said,
            journal.model,
            journal.finish_reason or "length",
            prompt_tokens=counted["prompt_tokens"],
            completion_tokens=counted["completion_tokens"],
        )
        await cache.remember(asked_of(course), answer)


def served_by(fleet: Fleet, course: Course, decision: Serve, replica: str) -> Served:
    """What the answer discloses: the reason of a decision stands only where a lower tier answers."""
    best = next(iter(fleet.tiers))
    degraded = decision.reason if decision.tier != best else ""
    request = course.request
    return Served(
        decision.tier,
        replica,
        degraded,
        request.request_id,
        traceparent=request.traceparent or course.trail.traceparent,
        given_up=course.told,
        turn=course.turn,
        kv_durability=promised(fleet.tier(decision.tier).spec.kv, request.body),
    )


def _target(tier: Tier, replica: Replica) -> Target:
    takes_ids, resume = replica.takes_token_ids, tier.spec.resume
    return Target(
        tier.name,
        replica.place.served_model,
        takes_ids and resume == "ids",
        replica.max_model_len,
        resume != "none",
    )


async def _raced(race: Race, exchange: Exchange, answer: Awaitable[Told]) -> Told:
    """In a race, a replica's verdict on the request counts like a first token."""
    try:
        return await answer
    except Rejected:
        race.win(exchange)
        raise


async def _until_read(stream: Stream, blocked: Awaitable[None], broken: ExchangeFailed | None) -> None:
    """Waits for a client that reads slowly, without holding the silence against the replica.

    Raises:
        ExchangeFailed: `broken`, once what came before it is out.
    """
    stream.is_blocked = True
    await blocked
    stream.is_blocked = False
    stream.last_token_at = asyncio.get_running_loop().time()
    if broken is not None:
        raise broken
