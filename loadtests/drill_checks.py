"""The figures that drills look at."""

from collections.abc import Sequence

from loadtests.client import Record
from loadtests.drill_observed import Observed, Outcome, share
from loadtests.drill_plan import Check

IN_FLIGHT = "graceway_replica_in_flight"
QUEUED = "graceway_queue_length"
STORE_AVAILABLE = "graceway_store_available"
RESUMES = "graceway_resumes_total"
BREAKER_OPEN = "graceway_breaker_open"
QUALITY = "graceway_tier_quality"


def whole(least: float = 1.0) -> Check:
    return Check(
        "answers whole", lambda seen: share(seen.staying(), lambda o: o.is_whole), least=least, unit="%"
    )


def in_time(least: float = 0.97) -> Check:
    return Check(
        "whole, first token within 1 s",
        lambda seen: share(seen.staying(), lambda o: o.is_in_time),
        least=least,
        unit="%",
    )


def priority_in_time(priority: str, least: float) -> Check:
    def measure(seen: Observed) -> float | None:
        return share([o for o in seen.staying() if o.priority == priority], lambda o: o.is_in_time)

    return Check(f"{priority} whole and in time", measure, least=least, unit="%")


def answered_or_refused(least: float = 1.0) -> Check:
    """Nothing fails: what isn't answered is refused, and says why."""
    return Check(
        "answered, or refused as declared",
        lambda seen: share(seen.staying(), lambda o: not o.judgement.is_failed),
        least=least,
        unit="%",
    )


def longest_gap(most_s: float) -> Check:
    return Check(
        "longest gap in an answer",
        lambda seen: max((o.record.max_gap_s for o in seen.staying()), default=None),
        most=most_s,
        unit="s",
    )


def no_silent_end() -> Check:
    """A stream that can't be finished says so."""
    return Check(
        "answers that just stop", lambda seen: float(sum(_is_silent(o) for o in seen.staying())), most=0
    )


def _is_silent(outcome: Outcome) -> bool:
    record: Record = outcome.record
    is_begun = record.status == 200 and bool(record.token_times)
    return (
        is_begun
        and not outcome.is_whole
        and record.error_event is None
        and outcome.judgement.why != "divergent"
    )


def no_token_lost_or_repeated() -> Check:
    def measure(seen: Observed) -> float:
        return float(sum(o.difference.lost + o.difference.repeated for o in seen.outcomes))

    return Check("tokens lost or repeated", measure, most=0)


def no_wrong_answer_after(seconds: float) -> Check:
    """Later than so long after the fault."""

    def measure(seen: Observed) -> float:
        late = seen.due(seen.fault_s + seconds)
        return float(sum(o.judgement.why == "divergent" for o in late))

    return Check(f"wrong answers later than {seconds:g} s after the fault", measure, most=0)


def few_on_the_replica_after(seconds: float, most: int) -> Check:
    """How many requests still go to the replica that has the fault."""

    def measure(seen: Observed) -> float | None:
        if not seen.replicas:
            return None
        late = seen.due(seen.fault_s + seconds, seen.heal_s)
        return float(sum(_went_to(o, seen.replicas[0]) for o in late))

    what = f"requests that it got later than {seconds:g} s after the fault"
    return Check(what, measure, most=most, steady=False)


def _went_to(outcome: Outcome, url: str) -> bool:
    """By the gateway's word, or where there is no gateway by the address that was asked."""
    return outcome.front == url or url.removeprefix("http://") in outcome.replica


def at_rest() -> Check:
    """Every count is back to zero when the clients are done."""
    return Check("still counted when all is over", lambda seen: seen.still_running, most=0)


def no_failure_beyond(front: int = 0) -> Check:
    """Only what was under way on a gateway that dies may be lost with it."""

    def measure(seen: Observed) -> float | None:
        if not seen.fronts:
            return None
        failed = [o for o in seen.staying() if not o.is_whole]
        return float(sum(not _was_on(o, seen.fronts[front], seen.fault_s) for o in failed))

    return Check("failed, and not under way on the gateway that died", measure, most=0)


def _was_on(outcome: Outcome, front: str, at_s: float) -> bool:
    return outcome.front == front and outcome.due_s <= at_s + 0.1 and outcome.ended_s >= at_s - 0.1


def degraded_meanwhile(least: float) -> Check:
    """While the fault lasts, answers come from a lower tier and say so."""

    def measure(seen: Observed) -> float | None:
        return share(seen.due(seen.fault_s + 1.0, seen.heal_s), lambda o: o.is_whole and o.is_degraded)

    return Check("degraded, and saying so, while it lasts", measure, least=least, steady=False, unit="%")


def degraded_at_most(most: float) -> Check:
    """Nothing is given up that need not be."""

    def measure(seen: Observed) -> float | None:
        return share(seen.staying(), lambda o: o.is_degraded)

    return Check("answered by a lower tier", measure, most=most, unit="%")


def on_top_again_within(seconds: float) -> Check:
    def measure(seen: Observed) -> float | None:
        return share(seen.due(seen.heal_s + seconds), lambda o: o.is_in_time and not o.is_degraded)

    what = f"on the top tier again {seconds:g} s after it healed"
    return Check(what, measure, least=1.0, steady=False, unit="%")


def store_trouble_shows() -> Check:
    return Check(
        "store available, at worst",
        lambda seen: min(seen.values(STORE_AVAILABLE), default=None),
        most=0,
        steady=False,
    )


def local_turns_show() -> Check:
    """Answers say that their turn is kept by this gateway alone, while that is so."""

    def measure(seen: Observed) -> float | None:
        meanwhile = seen.due(seen.fault_s, seen.heal_s)
        return float(sum(_is_local(o) for o in meanwhile)) if seen.scrapes else None

    return Check("turns kept by a gateway alone, and saying so", measure, least=1, steady=False)


def _is_local(outcome: Outcome) -> bool:
    return outcome.record.headers.get("x-session-durability") == "local"


def used_again_after(seconds: float, least: int) -> Check:
    """Requests that the replica which had the fault gets, so long after it healed."""

    def measure(seen: Observed) -> float | None:
        if not seen.replicas:
            return None
        late = seen.due(seen.heal_s + seconds)
        return float(min(_on(late, front, seen.replicas[0]) for front in seen.fronts or ("",)))

    what = f"requests that it got from every gateway later than {seconds:g} s after it healed"
    return Check(what, measure, least=least)


def _on(outcomes: Sequence[Outcome], front: str, replica: str) -> int:
    return sum(_went_to(o, replica) for o in outcomes if front in ("", o.front))


def store_is_back() -> Check:
    def measure(seen: Observed) -> float | None:
        values = seen.values(STORE_AVAILABLE)
        return values[-1] if values else None

    return Check("store available at the end", measure, least=1)


def store_available_after(seconds: float, least: float) -> Check:
    """A share of the time, from so long after the fault to the end."""

    def measure(seen: Observed) -> float | None:
        read = [
            s.metrics.get(STORE_AVAILABLE)
            for s in seen.scrapes
            if s.metrics and s.at_s >= seen.fault_s + seconds
        ]
        known = [value for value in read if value is not None]
        return sum(known) / len(known) if known else None

    return Check(f"store available, from {seconds:g} s after the fault", measure, least=least, unit="%")


def no_resume() -> Check:
    return Check("streams that had to be resumed", lambda seen: seen.grown(RESUMES), most=0)


def no_open_breaker() -> Check:
    return Check("breakers open", lambda seen: max(seen.values(BREAKER_OPEN), default=None), most=0)


def refused_within(seconds: float) -> Check:
    """All but the slowest in twenty: who waited and was overtaken is refused late, and rarely."""

    def measure(seen: Observed) -> float | None:
        took = sorted(
            o.record.ended_at - o.record.started_at for o in seen.outcomes if o.judgement.kind == "shed"
        )
        return took[min(int(len(took) * 0.95), len(took) - 1)] if took else None

    return Check("refusals take, p95", measure, most=seconds, unit="s")


def metric_changed(metric: str, what: str) -> Check:
    return Check(what, lambda seen: seen.grown(metric), least=1e-9, steady=False)
