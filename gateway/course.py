"""One request's way through the pipeline: what was tried, what the client has, and where it goes on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.context import TooLong
from gateway.coverage import covered
from gateway.errors import BadRequest
from gateway.hedge import Race
from gateway.journal import Journal
from gateway.policy.facts import Attempt, Facts, Seam
from gateway.reply import Reply, Served
from gateway.request import Request
from gateway.specs import GivesUp, Slo
from gateway.trace_context import TraceContext
from gateway.trail import NO_TRAIL, Trail
from gateway.turn import Turn


@dataclass(slots=True)
class Course:
    """The state of one request between its decisions."""

    request: Request
    facts: Facts
    journal: Journal
    turn: Turn
    """Of its session."""
    time: Callable[[], float]
    """The event loop's clock: asking for the loop costs more than asking it."""
    attempts: list[Attempt] = field(default_factory=list)
    seam: Seam | None = None
    """Set when the stream broke after the client had some of it."""
    first_tier: str = ""
    has_begun: bool = False
    """Whether the client has a status."""
    ttft_s: float = 0.0
    """Of the last attempt, from sending to the first token."""
    has_arrived: bool = False
    """Whether its arrival has been counted."""
    promised: str = ""
    """The tier whose queue has just promised it a place."""
    race: Race | None = None
    """Set while a second prefill may run beside this one."""
    given_up: str = ""
    """What the tier leaves out of the request."""
    lateness: str = ""
    """That it waited longer than others are promised to, and how long."""
    too_long: TooLong | None = None
    """Why the last tier that leaves turns out could not have it."""
    kv_turn: str = ""
    """The name under which the replica acknowledges that the turn is stored; empty where nobody waits for that."""
    ladder: tuple[str, ...] = ()
    """The tiers that `facts.lowest_tier` counts."""
    trail: Trail = NO_TRAIL
    span: TraceContext | None = None
    """Of the last attempt, if it is traced."""
    first_token_at: float = 0.0
    """Of the last attempt, in `perf_counter` seconds; 0 before there is one."""
    asked: Request = field(init=False)
    """The request as the client sent it; `request` is what the present tier answers of it."""

    def __post_init__(self) -> None:
        self.asked = self.request

    def begin_attempt(self) -> None:
        """Forgets what is the last attempt's alone."""
        self.first_token_at, self.span = 0.0, None

    @property
    def bindings(self) -> Mapping[str, str]:
        """The session's replica by tier."""
        return self.turn.replicas

    @property
    def has_tokens(self) -> bool:
        return self.journal.has_started

    @property
    def has_all_tokens(self) -> bool:
        """Whether nothing but the end is missing, so that no replica is needed any more."""
        if not self.has_tokens:
            return False
        limit = self.request.max_tokens
        is_full = limit is not None and self.journal.tokens >= limit and not self.request.inexact_because
        return bool(self.journal.finish_reason) or is_full

    @property
    def is_retry(self) -> bool:
        """Whether another attempt on a replica has to come out of the retry budget."""
        return self.seam is not None or any(attempt.replica for attempt in self.attempts)

    @property
    def told(self) -> str:
        """All that the answer was given without, as clients are told it."""
        parts = self.asked.lacks, self.given_up, self.lateness
        return ", ".join(filter(None, parts)) if any(parts) else ""

    def keep_to(self, ladder: tuple[str, ...]) -> None:
        """Counts what the caller accepts in the present ladder, which a reload may have changed."""
        if self.ladder is not ladder:
            accepted = self.ladder[: self.facts.lowest_tier + 1]
            self.facts = replace(self.facts, lowest_tier=lowest_tier(self.asked, ladder, accepted))
            self.ladder = ladder

    def cover(self, gives_up: GivesUp | None) -> None:
        """Answers as much of the request as a tier does that leaves this out; None is all of it. Only as long as the
        client has nothing."""
        request, given_up = (self.asked, "") if gives_up is None else covered(self.asked, gives_up)
        if given_up != self.given_up:
            self.request, self.given_up, self.journal = request, given_up, Journal(request)

    def leave_out(self, request: Request, told: str) -> None:
        """Answers what is left of the request, `told` being what is not."""
        if told:
            self.request, self.journal = request, Journal(request)
            self.given_up = ", ".join(filter(None, (self.given_up, told)))

    def waited(self, slo: Slo, now: float) -> None:
        """Notes that a request which is promised less than others has had to wait for longer than those would."""
        if slo.sheddable_ttft_s is None or self.facts.priority != "sheddable":
            return
        waited_s = now - self.facts.arrived_at
        if waited_s > slo.ttft_s:
            self.lateness = f"latency={waited_s:.1f} s"

    def lane(self, race: Race) -> "Course":
        """The same request as one of two that race for the first token."""
        return Course(
            self.asked,
            self.facts,
            Journal(self.asked),
            self.turn,
            self.time,
            race=race,
            ladder=self.ladder,
            trail=self.trail,
        )

    def take_over(self, lane: "Course") -> None:
        """Goes on from where a lane of a race ended."""
        self.attempts.extend(lane.attempts)
        self.journal, self.seam, self.first_tier = lane.journal, lane.seam, lane.first_tier
        self.request, self.given_up, self.too_long = lane.request, lane.given_up, lane.too_long
        self.has_begun, self.ttft_s = lane.has_begun, lane.ttft_s

    async def push(self, reply: Reply, served: Served, frames: bytes) -> None:
        """Sends a part of a streamed answer, and waits until the client can take more."""
        self.has_begun = True
        blocked = reply.push(served, frames)
        if blocked is not None:
            await blocked


def lowest_tier(request: Request, ladder: Sequence[str], accepted: Sequence[str] = ()) -> int:
    """The index in `ladder` of the lowest tier that the caller and its key accept; where a reload has taken that one out,
    of the lowest that is left of those that were `accepted` before.

    Raises:
        BadRequest: there is no such tier, and never was.
    """
    limits = request.degradation, request.lowest_tier or "allow"
    return min(_lowest_of(limit, ladder, accepted) for limit in limits)


def _lowest_of(limit: str, ladder: Sequence[str], accepted: Sequence[str]) -> int:
    if limit == "allow":
        return len(ladder) - 1
    if limit == "never":
        return 0
    if limit in ladder:
        return ladder.index(limit)
    if not accepted:
        known = ", ".join(ladder)
        raise BadRequest(f"x-degradation must be allow, never, or one of {known}", "x-degradation")
    return max((at for at, tier in enumerate(ladder) if tier in accepted), default=0)
