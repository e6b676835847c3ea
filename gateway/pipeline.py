"""The request path, the same for HTTP and gRPC, stream or not.

facts → snapshot → decide → reserve → dispatch → stream → settle. A failed attempt goes back to *decide* with what was
tried; a stream that broke goes back with its journal, and goes on where it was.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from fallback_models.answer import Answer, Answerer
from fallback_models.cache import AnswerCache, is_deterministic
from gateway.breakers import Outcome
from gateway.detokenize import detokenize
from gateway.dispatch import Exchange, Patience, PushedBack, Rejected, Take, TokenIdsRefused, outcome_of
from gateway.errors import BadRequest, broken_json
from gateway.fleet import Fleet, Permit, Replica, Stream
from gateway.hedge import LOST, Race
from gateway.http_client import ExchangeFailed
from gateway.journal import Journal, Leg, check_whole
from gateway.legs import CannotContinue, Target, first_leg, is_streamed_inside, next_leg
from gateway.own_answer import frames_of, whole_of
from gateway.policy.decide import Limits, decide, decide_seam
from gateway.policy.decision import Decision, Serve, Shed, Wait
from gateway.policy.facts import Attempt, Facts, Seam
from gateway.policy.patience import hedge_after_s
from gateway.policy.prefix import BLOCK_BYTES, prefix_chain
from gateway.policy.retry_budget import RetryBudget
from gateway.policy.route import Route
from gateway.reply import Reply, Served
from gateway.request import Request, rendered
from gateway.sessions import Sessions
from gateway.shares import TierShares
from gateway.sse import DONE_FRAME, frame
from gateway.telemetry import Telemetry

BYTES_OF_A_CHARACTER = 4
"""In UTF-8, and so the most tokens that can stand for a part of one."""
BACKPRESSURE_S = 0.5
"""How long a replica that pushed back without a Retry-After gets nothing new."""


@dataclass(slots=True)
class Course:
    """One request's way through the pipeline."""

    request: Request
    facts: Facts
    journal: Journal
    bindings: Mapping[str, str]
    attempts: list[Attempt] = field(default_factory=list)
    seam: Seam | None = None
    """Set when the stream broke after the client had some of it."""
    first_tier: str = ""
    has_begun: bool = False
    """Whether the client has a status."""
    ttft_s: float = 0.0
    """Of the last attempt, from sending to the first token."""
    promised: str = ""
    """The tier whose queue has just promised it a place."""
    race: Race | None = None
    """Set while a second prefill may run beside this one."""

    @property
    def has_tokens(self) -> bool:
        return self.journal.has_started

    def take_over(self, lane: "Course") -> None:
        """Goes on from where a lane of a race ended."""
        self.attempts.extend(lane.attempts)
        self.journal, self.seam, self.first_tier = lane.journal, lane.seam, lane.first_tier
        self.has_begun, self.ttft_s = lane.has_begun, lane.ttft_s


@dataclass(slots=True)
class Pipeline:
    """The request path of one model."""

    fleet: Fleet
    sessions: Sessions
    own: Mapping[str, Answerer]
    """What the gateway answers itself, by tier."""
    cache: AnswerCache | None
    """Where complete answers of the best tier are remembered."""
    route: Route
    limits: Limits
    budget: RetryBudget
    telemetry: Telemetry
    shares: TierShares
    rng: Random
    request_timeout_s: float
    may_hedge: bool = False

    async def answer(self, request: Request, reply: Reply) -> None:
        """Answers, degrades or refuses one request.

        Raises:
            BadRequest: `x-degradation` names no tier.
            asyncio.CancelledError: the client has gone; everything it held has been given back.
        """
        loop = asyncio.get_running_loop()
        facts = self._facts(request, loop.time())
        bindings = await self.sessions.find(facts.session, self._is_lost)
        course = Course(request, facts, Journal(request), bindings)
        self.budget.earn(loop.time())
        is_new = True
        while True:
            now = loop.time()
            decision = self._decide(course, now)
            if is_new:
                self.fleet.arrived(facts, "" if isinstance(decision, Shed) else decision.tier, now)
                is_new = False
            if isinstance(decision, Wait):
                await self._wait(course, decision, now)
            elif isinstance(decision, Shed):
                await self._refuse(course, decision, reply)
                return
            elif decision.replica is None:
                if await self._answer_itself(course, decision, reply):
                    return
            else:
                permit = self.fleet.reserve(decision.tier, decision.replica, now)
                if permit is not None and await self._attempt(course, decision, permit, reply):
                    return

    def _facts(self, request: Request, now: float) -> Facts:
        names = list(self.fleet.tiers)
        if request.degradation == "allow":
            lowest = len(names) - 1
        elif request.degradation == "never":
            lowest = 0
        elif request.degradation in names:
            lowest = names.index(request.degradation)
        else:
            raise BadRequest(
                f"x-degradation must be allow, never, or one of {', '.join(names)}", "x-degradation"
            )
        timeout_s = min(request.timeout_s or self.request_timeout_s, self.request_timeout_s)
        return Facts(
            model=request.model,
            arrived_at=now,
            deadline=now + timeout_s,
            priority=request.priority,
            session=request.session if self.route.keeps_sessions else "",
            lowest_tier=lowest,
            prompt_size_bytes=request.size_bytes,
            max_tokens=request.max_tokens or 0,
            prefix=prefix_chain(rendered(request)) if request.size_bytes >= BLOCK_BYTES else (),
        )

    def _decide(self, course: Course, now: float) -> Decision:
        may_retry = self.budget.balance(now) >= 1.0
        promised, course.promised = course.promised, ""
        snapshot = self.fleet.snapshot(now, may_retry, course.bindings, promised)
        if course.seam is not None:
            if not may_retry:
                return Shed("no_replica", 1.0, "the stream broke and the retry budget is spent")
            return decide_seam(
                course.facts, snapshot, course.attempts, course.seam, now, self.rng, self.route, self.limits
            )
        return decide(course.facts, snapshot, course.attempts, now, self.rng, self.route, self.limits)

    async def _wait(self, course: Course, decision: Wait, now: float) -> None:
        tried = frozenset(a.replica for a in course.attempts)
        is_promised = await self.fleet.wait(
            decision.tier, course.facts, decision.replica, tried, decision.until
        )
        course.promised = decision.tier if is_promised else ""
        waited_s = asyncio.get_running_loop().time() - now
        self.telemetry.time(self.telemetry.queue_s, waited_s, self.fleet.model, decision.tier)

    async def _attempt(self, course: Course, decision: Serve, permit: Permit, reply: Reply) -> bool:
        """One attempt, or a race of two. True when the client has its answer; False when to decide again."""
        may_hedge = self.may_hedge and course.seam is None and is_streamed_inside(course.request)
        if may_hedge and not course.attempts:
            return await self._race(course, decision, permit, reply)
        return await self._try(course, decision, permit, reply)

    async def _race(self, course: Course, decision: Serve, permit: Permit, reply: Reply) -> bool:
        """An attempt that is joined by a second one when its first token is late; whoever has a token first goes on."""
        tier = self.fleet.tiers[decision.tier]
        race = Race()
        lanes = [replace(course, journal=Journal(course.request), attempts=[], race=race)]
        runs = [asyncio.ensure_future(self._try(lanes[0], decision, permit, reply))]
        try:
            await asyncio.wait(runs, timeout=hedge_after_s(tier.ttfts, tier.spec.slo.ttft_s))
            second = None if runs[0].done() or race.winner else self._second(course, decision)
            if second is not None:
                lanes.append(replace(course, journal=Journal(course.request), attempts=[], race=race))
                runs.append(asyncio.ensure_future(self._try(lanes[1], *second, reply)))
            answered = await asyncio.gather(*runs)
        finally:
            # A client that leaves takes both with it.
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)
        for lane in sorted(lanes, key=lambda lane: lane.has_tokens):
            course.take_over(lane)
        return any(answered)

    def _second(self, course: Course, decision: Serve) -> tuple[Serve, Permit] | None:
        """Another replica of the same tier with a free slot, if the budget allows it, and a permit for it."""
        assert decision.replica is not None
        now = asyncio.get_running_loop().time()
        snapshot = self.fleet.snapshot(now, self.budget.balance(now) >= 1.0, course.bindings)
        tried = [Attempt(decision.tier, decision.replica.replica, "late")]
        other = decide(course.facts, snapshot, tried, now, self.rng, self.route, self.limits)
        if not isinstance(other, Serve) or other.replica is None or other.tier != decision.tier:
            return None
        permit = self.fleet.reserve(other.tier, other.replica, now)
        if permit is None:
            return None
        self.budget.spend(now)
        return other, permit

    async def _try(self, course: Course, decision: Serve, permit: Permit, reply: Reply) -> bool:
        """One attempt on the reserved replica. True when the client has its answer; False when to decide again."""
        loop = asyncio.get_running_loop()
        outcome, result = Outcome.NEUTRAL, "abandoned"
        tokens_before = course.journal.tokens if course.has_tokens else 0
        if course.attempts or course.seam is not None:
            self.budget.spend(loop.time())
        try:
            await self._dispatch(course, decision, permit.replica, reply)
            outcome, result = self._succeeded(course, decision, permit)
        except Rejected as rejected:
            result = "rejected"
            if course.journal.leg.is_continuation:
                return await self._cannot_go_on(course, reply)
            served = self._served(course, decision, permit.replica)
            await reply.whole(served, rejected.body, rejected.status)
            self._count(course, decision.tier, "rejected")
        except CannotContinue as reason:
            await self._refuse(course, Shed("no_replica", None, str(reason)), reply)
        except ExchangeFailed as failed:
            outcome, result = outcome_of(failed), failed.failure
            self._failed(course, decision, permit, failed, tokens_before)
            return False
        finally:
            permit.settle(outcome, loop.time())
            self._count_attempt(course, decision, permit.replica, result, tokens_before)
        return True

    async def _cannot_go_on(self, course: Course, reply: Reply) -> bool:
        """A replica found the continuation wrong, which the client never sent: begin anew, or end a stream that has begun."""
        if not course.has_begun:
            course.journal = Journal(course.request)
            return False
        await self._refuse(
            course, Shed("no_replica", None, "a replica refused to go on with the answer"), reply
        )
        return True

    async def _dispatch(self, course: Course, decision: Serve, replica: Replica, reply: Reply) -> None:
        """Sends the request on its way and the answer back to the client."""
        served = self._served(course, decision, replica)
        if course.has_tokens and self._has_ended(course):
            await self._end(course, reply, served, [])
            return
        leg = await self._next_leg(course, decision.tier, replica)
        if leg is None:
            if course.attempts:
                course.journal = Journal(course.request)
            course.first_tier = decision.tier
            leg = first_leg(course.request, self._target(decision.tier, replica))
        course.journal.begin(leg)
        async with Exchange(replica, leg, course.request, self._patience(course, decision.tier)) as exchange:
            if course.race is not None:
                course.race.enter(exchange)
            await self._start(course, exchange)
            if not is_streamed_inside(course.request):
                body = await exchange.read_whole()
                check_whole(body)
                await reply.whole(served, body)
                return
            await self._stream(course, served, replica, exchange, reply)

    async def _start(self, course: Course, exchange: Exchange) -> None:
        try:
            await exchange.start()
        except Rejected:
            if course.race is not None:
                course.race.win(exchange)
            raise

    async def _next_leg(self, course: Course, tier: str, replica: Replica) -> Leg | None:
        """The leg that goes on with a broken answer; None to begin anew, as long as the client has nothing of it."""
        if not course.has_tokens or (not course.has_begun and tier != course.first_tier):
            return None
        course.journal.rewind()
        held = await self._held_text(course.journal, replica)
        try:
            return next_leg(course.journal, self._target(tier, replica), course.first_tier, held)
        except CannotContinue:
            if course.has_begun:
                raise
            return None

    async def _stream(
        self, course: Course, served: Served, replica: Replica, exchange: Exchange, reply: Reply
    ) -> None:
        """Reads to the end of the leg; the client gets each frame as it comes, if it asked for a stream."""
        journal = course.journal
        exchange.stream.is_movable = not course.request.inexact_because
        await exchange.pump(self._take(course, served, replica, exchange, reply))
        if journal.is_empty:
            raise ExchangeFailed("no_tokens", "the replica ended without generating anything")
        if not journal.finish_reason:
            raise ExchangeFailed("cut", "the answer ended before its finish reason")
        out: list[bytes] = []
        if not journal.has_started:
            journal.release_held(out)
        await self._end(course, reply, served, out)

    def _take(
        self, course: Course, served: Served, replica: Replica, exchange: Exchange, reply: Reply
    ) -> Take:
        """What is done with events in the step in which they are read: journal, measure, pass on."""
        journal, stream, time = course.journal, exchange.stream, asyncio.get_running_loop().time
        is_streamed, tokens = course.request.stream, journal.tokens

        def take(payloads: list[bytes]) -> Awaitable[None] | None:
            nonlocal tokens
            out: list[bytes] = []
            broken = _enter(journal, payloads, out)
            if journal.tokens > tokens or (out and not stream.last_token_at):
                tokens, now = journal.tokens, time()
                if not stream.last_token_at:
                    self._first_token(course, served.tier, replica, exchange, now)
                replica.on_token(stream, now)
            if journal.is_done or (journal.leg.stop is not None and journal.leg.stop.hit is not None):
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

    async def _end(self, course: Course, reply: Reply, served: Served, out: list[bytes]) -> None:
        """The end of a whole answer: what is still owed, then `[DONE]`; or all of it at once."""
        journal = course.journal
        await self._remember(course, served)
        if not course.request.stream:
            await reply.whole(served, journal.whole())
            return
        journal.close(out)
        out.append(DONE_FRAME)
        await self._push(course, served, reply, b"".join(out))
        await reply.end()

    async def _push(self, course: Course, served: Served, reply: Reply, frames: bytes) -> None:
        course.has_begun = True
        blocked = reply.push(served, frames)
        if blocked is not None:
            await blocked

    async def _remember(self, course: Course, served: Served) -> None:
        """Keeps a complete answer of the best tier for the cache tier, if there is one."""
        journal, request = course.journal, course.request
        if self.cache is None or served.degraded or journal.odd or not is_deterministic(request.body):
            return
        counted = journal.counted_usage()
        answer = Answer(
            journal.said,
            journal.model,
            journal.finish_reason or "length",
            prompt_tokens=counted["prompt_tokens"],
            completion_tokens=counted["completion_tokens"],
        )
        await self.cache.remember(request.model, request.kind, request.body, answer)

    def _has_ended(self, course: Course) -> bool:
        """Whether the broken answer had all its tokens already, so that no replica is needed to end it."""
        limit = course.request.max_tokens
        has_all = limit is not None and course.journal.tokens >= limit and not course.request.inexact_because
        return bool(course.journal.finish_reason) or has_all

    async def _held_text(self, journal: Journal, replica: Replica) -> str | None:
        """Text that the replica generated but held back, as it might have become a stop string; None when unknown."""
        if not journal.request.stops or not journal.ids:
            return ""
        for count in range(len(journal.ids), max(0, len(journal.ids) - BYTES_OF_A_CHARACTER), -1):
            text = await detokenize(replica, journal.ids[:count])
            if text is not None and not text.endswith("\N{REPLACEMENT CHARACTER}"):
                said = journal.said
                if not text.startswith(said):
                    return None
                journal.keep_ids(count)
                return text[len(said) :]
        return None

    def _first_token(
        self, course: Course, tier: str, replica: Replica, exchange: Exchange, now: float
    ) -> None:
        if course.race is not None:
            course.race.win(exchange)
        exchange.first_token()
        ttft_s = now - exchange.sent_at
        replica.on_first_token(ttft_s)
        self.fleet.prefixes.add(replica.replica, course.facts.prefix)
        course.ttft_s = ttft_s
        self.fleet.tiers[tier].ttfts.add(ttft_s)
        if course.seam is None:
            seen_s = now - course.facts.arrived_at
            self.telemetry.time(self.telemetry.ttft_s, seen_s, self.fleet.model, tier)

    def _patience(self, course: Course, tier_name: str) -> Patience:
        tier = self.fleet.tiers[tier_name]
        now, deadline = asyncio.get_running_loop().time(), course.facts.deadline
        if not is_streamed_inside(course.request):
            # Its first byte is its last: only the deadline says how long that may take.
            return Patience(deadline, deadline)
        return Patience(now + tier.first_token_patience_s(now), deadline)

    def _target(self, tier: str, replica: Replica) -> Target:
        return Target(tier, replica.place.served_model, replica.takes_token_ids, replica.max_model_len)

    def _served(self, course: Course, decision: Serve, replica: Replica | None) -> Served:
        name = replica.replica if replica is not None else ""
        best = next(iter(self.fleet.tiers))
        degraded = decision.reason if decision.tier != best else ""
        request = course.request
        return Served(decision.tier, name, degraded, request.request_id, traceparent=request.traceparent)

    def _is_lost(self, tier_name: str, replica: str) -> bool:
        """Whether a session's replica can't have it now."""
        tier = self.fleet.tiers.get(tier_name)
        return tier is None or replica not in tier.replicas or not tier.replicas[replica].health.is_ready

    def _succeeded(self, course: Course, decision: Serve, permit: Permit) -> tuple[Outcome, str]:
        tier, replica = self.fleet.tiers[decision.tier], permit.replica
        bound = course.bindings.get(tier.name, "")
        is_lost = bool(bound) and self._is_lost(tier.name, bound)
        self.sessions.bind(course.facts.session, tier.name, replica.replica, is_lost)
        self._count(
            course, tier.name, "degraded" if decision.tier != next(iter(self.fleet.tiers)) else "served"
        )
        now = asyncio.get_running_loop().time()
        if decision.tier != next(iter(self.fleet.tiers)) and decision.reason != "resumed":
            self.telemetry.count(self.telemetry.degraded, self.fleet.model, tier.name, decision.reason)
            self.shares.degraded(decision.reason, now)
        if course.seam is not None:
            self.telemetry.count(self.telemetry.resumes, self.fleet.model, "resumed")
            self.shares.stream("resumed", now)
        is_slow = course.ttft_s > tier.spec.slo.ttft_s
        return (Outcome.SLOW if is_slow else Outcome.SUCCESS), "success"

    def _failed(
        self, course: Course, decision: Serve, permit: Permit, failed: ExchangeFailed, tokens_before: int
    ) -> None:
        """Learns from a failed attempt, and prepares the next one."""
        now, replica = asyncio.get_running_loop().time(), permit.replica
        if course.journal.tokens > tokens_before:
            # It made progress, so this is a new incident: what failed before may be well again.
            course.attempts.clear()
        if failed.failure == LOST:
            return
        if isinstance(failed, TokenIdsRefused):
            replica.takes_token_ids = False
            return
        course.attempts.append(Attempt(decision.tier, replica.replica, failed.failure))
        if course.has_begun and failed.failure != "deadline":
            may_change = course.facts.lowest_tier > 0
            course.seam = Seam(course.first_tier, now, may_change)
        if isinstance(failed, PushedBack):
            replica.back_off(now + (BACKPRESSURE_S if failed.retry_after_s is None else failed.retry_after_s))
        elif failed.failure in ("refused", "unreachable", "reset", "cut") or (
            failed.failure == "first_token_timeout" and replica.last_token_at < permit.since
        ):
            replica.signal("suspect", failed.failure, now)

    async def _answer_itself(self, course: Course, decision: Serve, reply: Reply) -> bool:
        """A tier without replicas answers, or misses."""
        request = course.request
        answer = await self.own[decision.tier].answer(request.model, request.kind, request.body)
        if answer is None:
            course.attempts.append(Attempt(decision.tier, "", "miss"))
            return False
        served = self._served(course, decision, None)
        served = replace(served, age_s=answer.age_s or None)
        if request.stream:
            await self._push(course, served, reply, frames_of(request, answer))
            await reply.end()
        else:
            await reply.whole(served, whole_of(request, answer))
        self._count(course, decision.tier, "degraded" if decision.reason else "served")
        if decision.reason:
            self.telemetry.count(self.telemetry.degraded, self.fleet.model, decision.tier, decision.reason)
            self.shares.degraded(decision.reason, asyncio.get_running_loop().time())
        return True

    async def _refuse(self, course: Course, shed: Shed, reply: Reply) -> None:
        """Says no: before anything was sent as a status, afterwards as the one error event that ends the stream."""
        self._count(course, course.first_tier, "broken" if course.has_begun else "shed")
        now = asyncio.get_running_loop().time()
        if not course.has_begun:
            self.telemetry.count(self.telemetry.shed, self.fleet.model, course.request.priority, shed.reason)
            self.shares.shed(shed.reason, now)
            await reply.refuse(shed, course.request.request_id)
            return
        self.telemetry.count(self.telemetry.resumes, self.fleet.model, "given_up")
        self.shares.stream("given_up", now)
        served = Served(course.first_tier, "", "", course.request.request_id)
        await self._push(course, served, reply, frame(broken_json(shed)))
        await reply.end()

    def _count(self, course: Course, tier: str, outcome: str) -> None:
        telemetry = self.telemetry
        telemetry.count(telemetry.requests, self.fleet.model, tier, course.request.priority, outcome)
        if outcome in ("served", "degraded"):
            self.shares.add(tier, asyncio.get_running_loop().time())

    def _count_attempt(
        self, course: Course, decision: Serve, replica: Replica, result: str, tokens_before: int
    ) -> None:
        telemetry, model = self.telemetry, self.fleet.model
        telemetry.count(telemetry.attempts, model, decision.tier, replica.replica, result)
        generated = course.journal.tokens - tokens_before
        if generated > 0:
            telemetry.count(telemetry.tokens, model, decision.tier, by=generated)


def _enter(journal: Journal, payloads: list[bytes], out: list[bytes]) -> ExchangeFailed | None:
    """Enters events up to one that breaks the stream; what came before it in the same read is the client's all the same."""
    for payload in payloads:
        try:
            journal.take(payload, out)
        except ExchangeFailed as failed:
            return failed
    return None


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
