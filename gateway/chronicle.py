"""Watches how each model stands, and enters into the event log what changes: tiers that go and come, degradation that
begins and ends, refusals, resumed streams, the store.

It reads what is counted anyway, once a tick, so no request pays for it.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import time

from gateway.beside import Beside
from gateway.events import EventLog, lasting
from gateway.standing import Level, Standing

TICK_S = 0.5
_BECAME: Mapping[Level, str] = {"degraded": "became degraded", "down": "went down"}
GAVE_UP = frozenset(_BECAME)
LASTING_S = 1.0
"""A change that is gone again sooner is not told."""


@dataclass(frozen=True, slots=True)
class Look:
    """One model at one moment. Counts are totals since the start."""

    standing: Standing
    serving: Mapping[str, bool]
    """By tier."""
    lower_answers: int = 0
    sheds: int = 0
    resumed: int = 0
    given_up: int = 0


@dataclass(slots=True)
class _Page:
    """What is remembered of one model. Times are unix seconds."""

    stopped_at: dict[str, float] = field(default_factory=dict)
    told_stopped: set[str] = field(default_factory=set)
    degraded_at: float | None = None
    reduced_at: float | None = None
    is_told: bool = False
    at_begin: Look | None = None
    last: Look | None = None


class Chronicle(Beside):
    """Keeps since when what is so, for all models of a gateway.

    Args:
        store_failure: why the state store is not available; None while it is.
    """

    def __init__(
        self,
        events: EventLog,
        looks: Callable[[], Mapping[str, Look]],
        store_failure: Callable[[], str | None],
    ) -> None:
        self._events, self._looks, self._store_failure = events, looks, store_failure
        self._pages: dict[str, _Page] = {}
        self._store_lost_at: float | None = None

    async def _run(self) -> None:
        while True:
            self.tick(time())
            await asyncio.sleep(TICK_S)

    def since(self, model: str, standing: Standing) -> float | None:
        """Since when a model has stood so, unix seconds; None when nothing is amiss or it has just begun."""
        page = self._pages.get(model)
        if page is None:
            return None
        if standing.cause:
            return page.stopped_at.get(standing.cause)
        return page.degraded_at if standing.level in GAVE_UP else page.reduced_at

    def tick(self, now: float) -> None:
        """Compares what is with what was. `now` is unix seconds."""
        looks = self._looks()
        self._pages = {model: self._pages.get(model) or _Page() for model in looks}
        for model, look in looks.items():
            page = self._pages[model]
            self._tell_tiers(model, page, look, now)
            self._tell_standing(model, page, look, now)
            if page.last is not None:
                self._tell_streams(model, page.last, look, now)
            page.last = look
        self._tell_store(now)

    def _tell_tiers(self, model: str, page: _Page, look: Look, now: float) -> None:
        for tier in [t for t in page.stopped_at if look.serving.get(t, True)]:
            out_s = now - page.stopped_at.pop(tier)
            if tier in page.told_stopped:
                page.told_stopped.discard(tier)
                self._events.add("ladder", f"{tier} of {model} can serve again, after {lasting(out_s)}", now)
        for tier in [t for t, is_serving in look.serving.items() if not is_serving]:
            since = page.stopped_at.setdefault(tier, now)
            if now - since >= LASTING_S and tier not in page.told_stopped and page.last is not None:
                page.told_stopped.add(tier)
                self._events.add("ladder", f"{tier} of {model} can't serve", since)

    def _tell_standing(self, model: str, page: _Page, look: Look, now: float) -> None:
        page.reduced_at = (page.reduced_at or now) if look.standing.level == "reduced" else None
        if look.standing.level not in GAVE_UP:
            if page.degraded_at is not None:
                self._tell_end(model, page, look, now)
            page.degraded_at, page.is_told = None, False
            return
        if page.degraded_at is None:
            page.degraded_at, page.at_begin = now, page.last or look
        elif not page.is_told and now - page.degraded_at >= LASTING_S:
            page.is_told = True
            standing = look.standing
            cost = f"; {standing.cost}" if standing.cost else ""
            # How it stood then: that it was a change is said first, as the line stays when it is over.
            self._events.add(
                "ladder", f"{model} {_BECAME[standing.level]}: {standing.text}{cost}", page.degraded_at
            )

    def _tell_end(self, model: str, page: _Page, look: Look, now: float) -> None:
        if not page.is_told or page.degraded_at is None or page.at_begin is None:
            return
        lower = look.lower_answers - page.at_begin.lower_answers
        sheds = look.sheds - page.at_begin.sheds
        self._events.add(
            "ladder",
            f"{model} is no longer degraded, after {lasting(now - page.degraded_at)} "
            f"({lower} answers from lower tiers, {sheds} refused): {look.standing.text}",
            now,
        )

    def _tell_streams(self, model: str, before: Look, look: Look, now: float) -> None:
        if (resumed := look.resumed - before.resumed) > 0:
            what = (
                "1 stream broke and continued" if resumed == 1 else f"{resumed} streams broke and continued"
            )
            self._events.add("resume", f"{what} on another replica ({model})", now)
        if (lost := look.given_up - before.given_up) > 0:
            what = "1 stream broke and ended" if lost == 1 else f"{lost} streams broke and ended"
            self._events.add("resume", f"{what} with an error event ({model})", now)

    def _tell_store(self, now: float) -> None:
        failure = self._store_failure()
        if failure is not None and self._store_lost_at is None:
            self._store_lost_at = now
            why = f" ({failure})" if failure else ""
            self._events.add(
                "store", f"the state store is not available{why}; requests go on without it", now
            )
        elif failure is None and self._store_lost_at is not None:
            out_s, self._store_lost_at = now - self._store_lost_at, None
            self._events.add("store", f"the state store is available again, after {lasting(out_s)}", now)
