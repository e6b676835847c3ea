"""The request path, the same for HTTP and gRPC, stream or not.

facts → snapshot → decide → reserve → dispatch → stream → settle. A failed attempt goes back to *decide* with what was
tried; a stream that broke goes back with its journal, and goes on where it was.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter

from fallback_models.answer import Answerer
from gateway.attempt import Attempts, Verdict, served_by
from gateway.context import TooLong
from gateway.course import Course, lowest_tier
from gateway.errors import ContextTooLong, broken_json
from gateway.features import Features
from gateway.fleet import Fleet
from gateway.hedge import Race
from gateway.journal import Journal
from gateway.ledger import Ledger
from gateway.legs import shows_first_token
from gateway.own_answer import asked_of, frames_of, whole_of
from gateway.policy.decide import Limits, decide, decide_seam
from gateway.policy.decision import Decision, Serve, Shed, Wait
from gateway.policy.facts import Attempt, Facts
from gateway.policy.patience import hedge_after_s
from gateway.policy.prefix import BLOCK_BYTES, prefix_chain
from gateway.policy.retry_budget import RetryBudget
from gateway.policy.route import Route
from gateway.reply import Reply, Served
from gateway.request import Request, rendered
from gateway.sessions import Sessions
from gateway.specs import GivesUp
from gateway.sse import frame
from gateway.tier import Permit
from gateway.trail import NO_TRAIL, Trail
from gateway.turn import NO_TURN

ONE_TEXT = GivesUp(n=1, logprobs=True)
"""What a tier without replicas leaves out: it has a text, and nothing else."""


@dataclass(slots=True)
class Pipeline:
    """The request path of one model."""

    fleet: Fleet
    sessions: Sessions
    attempts: Attempts
    own: Mapping[str, Answerer]
    """What the gateway answers itself, by tier."""
    route: Route
    limits: Limits
    budget: RetryBudget
    ledger: Ledger
    rng: Random
    request_timeout_s: float
    may_hedge: bool = False
    features: Features | None = None
    """What is put into a prompt about its user."""

    async def answer(self, request: Request, reply: Reply, trail: Trail = NO_TRAIL) -> int:
        """Answers, degrades or refuses one request; the tokens that it used, prompt included.

        Raises:
            BadRequest: `x-degradation` names no tier.
            asyncio.CancelledError: the client has gone; everything it held has been given back.
        """
        time = asyncio.get_running_loop().time
        arrived_at = time()
        if self.features is not None:
            began_at = perf_counter()
            enriched = await self.features.into(request)
            trail.passed("context features", began_at)
            if isinstance(enriched, Shed):
                return await self._turn_away(request, enriched, trail, reply)
            request = enriched
        facts = self._facts(request, arrived_at)
        turn = await self.sessions.begin(facts.session, self.fleet.is_lost) if facts.session else NO_TURN
        course = Course(request, facts, Journal(request), turn, time, ladder=self.fleet.ladder, trail=trail)
        self.budget.earn(time())
        verdict: Verdict = False
        while verdict is False:
            now, began_at = time(), perf_counter()
            decision = self._decide(course, now)
            self.ledger.decided(course, decision, began_at)
            if isinstance(decision, Wait):
                await self._wait(course, decision, now)
            elif isinstance(decision, Shed):
                verdict = decision
            elif decision.replica is None:
                verdict = await self._answer_itself(course, decision, reply)
            elif (permit := self._reserve(facts, decision, now)) is not None:
                verdict = await self._attempt(course, decision, permit, reply)
            if verdict is False and course.has_all_tokens:
                verdict = await self._end(course, reply)
        if isinstance(verdict, Shed):
            await self._refuse(course, verdict, reply)
        return course.journal.used_tokens

    async def _turn_away(self, request: Request, shed: Shed, trail: Trail, reply: Reply) -> int:
        """Refuses what can't even be asked; the tokens that it used."""
        self.ledger.shed(request, shed, trail)
        await reply.refuse(shed, request.request_id)
        self.ledger.turned_away(request)
        return 0

    def _reserve(self, facts: Facts, decision: Serve, now: float) -> Permit | None:
        assert decision.replica is not None
        return self.fleet.reserve(decision.tier, decision.replica, now, facts.fresh_size_bytes)

    def _facts(self, request: Request, now: float) -> Facts:
        prefix = prefix_chain(rendered(request)) if request.size_bytes >= BLOCK_BYTES else ()
        held_bytes = self.fleet.prefixes.known(prefix) * BLOCK_BYTES if prefix else 0
        timeout_s = min(request.timeout_s or self.request_timeout_s, self.request_timeout_s)
        return Facts(
            model=request.model,
            arrived_at=now,
            deadline=now + timeout_s,
            priority=request.priority,
            session=request.session if self.route.keeps_sessions else "",
            lowest_tier=lowest_tier(request, self.fleet.ladder),
            prompt_size_bytes=request.size_bytes,
            max_tokens=request.max_tokens or 0,
            fresh_size_bytes=request.size_bytes - held_bytes,
            prefix=prefix,
            tenant=request.tenant,
            weight=request.weight,
        )

    def _decide(self, course: Course, now: float) -> Decision:
        course.keep_to(self.fleet.ladder)
        may_retry = self.budget.balance(now) >= 1.0
        promised, course.promised = course.promised, ""
        snapshot = self.fleet.snapshot(now, may_retry, course.bindings, promised)
        facts, tried = course.facts, course.attempts
        if course.seam is None:
            decision = decide(facts, snapshot, tried, now, self.rng, self.route, self.limits)
        elif may_retry:
            return decide_seam(facts, snapshot, tried, course.seam, now, self.rng, self.route, self.limits)
        else:
            return Shed("no_replica", 1.0, "the stream broke and the retry budget is spent")
        if not course.has_arrived:
            course.has_arrived = True
            self.fleet.arrived(facts, "" if isinstance(decision, Shed) else decision.tier, now)
        return decision

    async def _wait(self, course: Course, decision: Wait, now: float) -> None:
        tried, began_at = frozenset(a.replica for a in course.attempts), perf_counter()
        is_promised = await self.fleet.wait(
            decision.tier, course.facts, decision.replica, tried, decision.until
        )
        course.promised = decision.tier if is_promised else ""
        left_at = asyncio.get_running_loop().time()
        self.ledger.queued(course, decision.tier, began_at)
        tier = self.fleet.tier(decision.tier)
        tier.recent.waited(tier.spec.slo.against_promise_s(left_at - now, course.facts.priority), left_at)

    def _attempt(
        self, course: Course, decision: Serve, permit: Permit, reply: Reply
    ) -> Coroutine[object, object, Verdict]:
        """One attempt, or a race of two."""
        may_race = self.may_hedge and not course.is_retry and shows_first_token(course.request)
        # Where each attempt costs money, one at a time.
        may_race = may_race and self.fleet.tier(decision.tier).purse is None
        run = self._race if may_race else self.attempts.run
        return run(course, decision, permit, reply)

    async def _race(self, course: Course, decision: Serve, permit: Permit, reply: Reply) -> Verdict:
        """An attempt that is joined by a second one when its first token is late; whoever has a token first goes on."""
        tier, race = self.fleet.tier(decision.tier), Race()
        lanes = [course.lane(race)]
        runs = [asyncio.ensure_future(self.attempts.run(lanes[0], decision, permit, reply))]
        try:
            await asyncio.wait(runs, timeout=hedge_after_s(tier.ttfts, tier.spec.slo.ttft_s))
            second = None if runs[0].done() or race.winner else self._second(course, decision)
            if second is not None:
                lanes.append(course.lane(race))
                runs.append(asyncio.ensure_future(self.attempts.run(lanes[1], *second, reply)))
            verdicts = await asyncio.gather(*runs)
        finally:
            # A client that leaves takes both with it.
            for run in runs:
                run.cancel()
            await asyncio.gather(*runs, return_exceptions=True)
        for lane in sorted(lanes, key=lambda lane: lane.has_tokens):
            course.take_over(lane)
        return next((verdict for verdict in verdicts if verdict is not False), False)

    def _second(self, course: Course, decision: Serve) -> tuple[Serve, Permit] | None:
        """Another replica of the same tier with a free slot, if the budget allows it, and a permit for it."""
        assert decision.replica is not None
        now = asyncio.get_running_loop().time()
        snapshot = self.fleet.snapshot(now, self.budget.balance(now) >= 1.0, course.bindings)
        tried = [Attempt(decision.tier, decision.replica.replica, "late")]
        other = decide(course.facts, snapshot, tried, now, self.rng, self.route, self.limits)
        if not isinstance(other, Serve) or other.replica is None or other.tier != decision.tier:
            return None
        permit = self._reserve(course.facts, other, now)
        if permit is None:
            return None
        self.budget.spend(now)
        return other, permit

    async def _answer_itself(self, course: Course, decision: Serve, reply: Reply) -> bool:
        """A tier without replicas answers, or misses."""
        course.cover(ONE_TEXT)
        request = course.request
        # Words can stand for words, but nothing that is kept or fixed is the embedding of another text.
        is_text = request.kind != "embedding"
        answer = await self.own[decision.tier].answer(asked_of(course)) if is_text else None
        if answer is None:
            course.attempts.append(Attempt(decision.tier, "", "miss"))
            return False
        if answer.similarity is not None:
            course.leave_out(request, f"near_match={answer.similarity:.3f}")
        served = replace(served_by(self.fleet, course, decision, ""), age_s=answer.age_s or None)
        if request.stream:
            await course.push(reply, served, frames_of(request, answer))
            await reply.end()
        else:
            await reply.whole(served, whole_of(request, answer))
        self.ledger.answered(course, decision.tier, served.degraded)
        return True

    async def _end(self, course: Course, reply: Reply) -> bool:
        """Ends an answer that broke with its last token already told: no replica is needed for that."""
        served = served_by(self.fleet, course, Serve(course.first_tier, None, "resumed"), "")
        await self.attempts.end(course, served, reply, [])
        self.ledger.answered(course, course.first_tier, served.degraded)
        return True

    def _with_too_long(self, course: Course, shed: Shed, too_long: TooLong) -> Shed:
        """The refusal of a request that was too long for some tier.

        Raises:
            ContextTooLong: it is for all of them, so that nothing but a shorter one helps.
        """
        windows = [
            t.window
            for t in list(self.fleet.tiers.values())[: course.facts.lowest_tier + 1]
            if t.spec.has_replicas
        ]
        if all(window is not None and too_long.needed > window for window in windows):
            self.ledger.rejected(course, "")
            raise ContextTooLong(str(too_long), "messages")
        return shed._replace(detail=f"{shed.detail}; {too_long}")

    async def _refuse(self, course: Course, shed: Shed, reply: Reply) -> None:
        """Says no: before anything was sent as a status, afterwards as the one error event that ends the stream."""
        if course.too_long is not None and not course.has_begun:
            shed = self._with_too_long(course, shed, course.too_long)
        self.ledger.refused(course, shed)
        if not course.has_begun:
            await reply.refuse(shed, course.request.request_id)
            self.ledger.turned_away(course.request)
            return
        served = Served(course.first_tier, "", "", course.request.request_id, turn=course.turn)
        await course.push(reply, served, frame(broken_json(shed)))
        await reply.end()
