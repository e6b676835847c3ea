"""One model as it is served: its fleet, its ladder, its pipeline, and who watches, wired from the specs."""

import asyncio
from random import Random
from time import time
from typing import Any

import pybreaker

from fallback_models.answer import Answerer
from fallback_models.cache import AnswerCache
from fallback_models.canned import CannedText
from fallback_models.near import NearQuestions
from gateway.attempt import Attempts
from gateway.context import ContextWindow
from gateway.embeddings import Embeddings
from gateway.engine_watch import EngineWatch
from gateway.events import EventLog, breaker_text, health_text
from gateway.exercised import Exercised
from gateway.features import Features
from gateway.fleet import Fleet
from gateway.health import HealthWatch
from gateway.ladder import Ladder
from gateway.ledger import Ledger
from gateway.lessons import Lessons
from gateway.pipeline import Pipeline
from gateway.policy.decide import Limits
from gateway.policy.health import Health
from gateway.policy.retry_budget import RetryBudget
from gateway.policy.route import route_of
from gateway.prefix_sharing import PrefixSharing
from gateway.purse import Purse, money_text
from gateway.replica import Replica
from gateway.sessions import Sessions
from gateway.shares import TierShares
from gateway.specs import GatewaySpec, ModelSpec, TierSpec
from gateway.telemetry import Telemetry
from gateway.tier import Tier
from state_store.protocol import StateStore

PURSE_SYNC_S = 1.0
"""How often gateways see what the others have claimed of a budget."""
RETIRED_LOOK_S = 0.5
"""How often a model that was taken out sees whether it has anything left to do."""
SETTLE_S = 2.0
"""How long the first probes may hold up the start."""


class ServedModel:
    """One model: its fleet, its pipeline, and who watches its health."""

    def __init__(
        self,
        name: str,
        spec: GatewaySpec,
        store: StateStore,
        rng: Random,
        telemetry: Telemetry,
        shares: TierShares,
        events: EventLog,
    ) -> None:
        self.fleet = Fleet(name, spec.models[name].tiers, spec.breaker, rng, spec.routing.zone)
        self.fleet.listeners.append(_TellsOfBreakers(name, telemetry, events))
        self.watch = HealthWatch(self.fleet, spec.health, store, rng)
        self.watch.listeners.append(_TellsOfHealth(name, telemetry, events))
        self.engines = EngineWatch(self.fleet, spec.engine_metrics)
        self.ladder = Ladder(self.fleet, store, self._features_out)
        self.prefixes = PrefixSharing(name, store, self.fleet.prefixes)
        self.fleet.routed = self.prefixes.routed
        self._sharing: asyncio.Task[None] | None = None
        self.sessions = Sessions(
            name,
            store,
            lambda durability: telemetry.count(telemetry.turns, name, durability),
            lambda cause: telemetry.count(telemetry.epochs, name, cause),
        )
        self.shares = shares
        self.proven_for_s = spec.ladder.proven_for_s
        self.exercised = Exercised(name, store, shares, lambda: self.proven_for_s)
        self.store = store
        self._events = events
        self._embeddings: list[Embeddings] = []
        self._purse_keeper: asyncio.Task[None] | None = None
        budget = RetryBudget(spec.retry.budget_share, spec.retry.budget_floor_per_s)
        self.ledger = Ledger(name, telemetry, shares)
        lessons = Lessons(self.fleet, self.sessions, self.ledger)
        self.attempts = Attempts(self.fleet, lessons, self.ledger, budget, store)
        self.pipeline = Pipeline(
            fleet=self.fleet,
            sessions=self.sessions,
            attempts=self.attempts,
            own={},
            route=route_of(spec.routing.filters, spec.routing.scorers, spec.routing.picker),
            limits=Limits(spec.retry.max_attempts),
            budget=budget,
            ledger=self.ledger,
            rng=rng,
            request_timeout_s=spec.request_timeout_s,
        )
        self.take(spec.models[name], spec)

    async def start(self) -> None:
        """Begins to watch; returns when each replica has been probed once, or after two seconds."""
        self._purse_keeper = asyncio.create_task(self._sync_purses(), name="purses")
        await self.watch.start(SETTLE_S)
        self.engines.start()
        self.ladder.start()
        self.exercised.start()
        self._sharing = asyncio.create_task(self.prefixes.run(), name="prefixes")

    async def retire(self) -> None:
        """Of a model that a reload has taken out: finishes what it has, watched as before, and stops."""
        await self.ladder.stop()
        try:
            while self.fleet.is_busy:  # noqa: ASYNC110 - no request should have to tell that it was the last
                await asyncio.sleep(RETIRED_LOOK_S)
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Stops watching, and closes what is open."""
        await self.ladder.stop()
        await self.engines.stop()
        await self.exercised.stop()
        await self.watch.stop()
        await self._stop_sharing()
        await self.sessions.close()
        await self._close_caches()
        await self._close_purses()
        for tier in self.fleet.tiers.values():
            for replica in tier.replicas.values():
                replica.pool.close()

    async def _stop_sharing(self) -> None:
        """Tells what has not been told yet, and no more."""
        if self._sharing is not None:
            self.prefixes.stop()
            await self._sharing

    def take(self, model: ModelSpec, spec: GatewaySpec) -> None:
        """Puts a ladder in force; what is in flight goes on."""
        self.fleet.apply(model.tiers, spec.breaker, spec.routing.zone)
        self.fleet.longest_request_s = max(self.fleet.longest_request_s, spec.request_timeout_s)
        self.fleet.prefixes.budget_bytes = spec.routing.prefix_budget_bytes
        self.watch.spec = spec.health
        self.engines.spec = spec.engine_metrics
        self._close_embeddings()
        self.proven_for_s = spec.ladder.proven_for_s
        self._fill_purses(model)
        own: dict[str, Answerer] = {}
        self.attempts.cache = None
        for tier in model.tiers:
            if tier.backend == "canned":
                texts = {language.lower(): text for language, text in tier.texts.items()}
                own[tier.name] = CannedText(tier.text or "", texts, tier.language_field or "")
            elif tier.backend == "cache":
                own[tier.name] = self.attempts.cache = self._cache(tier)
        self.attempts.windows = {t.name: ContextWindow(t) for t in model.tiers if t.gives_up.context}
        self._take_features(model)
        self.pipeline.own = own
        self.pipeline.route = route_of(spec.routing.filters, spec.routing.scorers, spec.routing.picker)
        self.pipeline.budget.retune(spec.retry.budget_share, spec.retry.budget_floor_per_s)
        self.pipeline.limits = Limits(spec.retry.max_attempts)
        self.pipeline.request_timeout_s = spec.request_timeout_s
        self.pipeline.may_hedge = spec.retry.hedge

    def _features_out(self) -> float | None:
        return None if self.pipeline.features is None else self.pipeline.features.out_share()

    def _take_features(self, model: ModelSpec) -> None:
        """The model's context features; the same ones keep what they remember."""
        before = self.pipeline.features
        if model.features is None:
            self.pipeline.features = None
        elif before is None or before.spec != model.features:
            self.pipeline.features = Features(model.features, self.store, self.ledger.feature)

    def _fill_purses(self, model: ModelSpec) -> None:
        """One purse for each tier with a budget; one whose budget is the same keeps what it knows."""
        purses = {}
        for spec in model.tiers:
            tier, kept = self.fleet.tiers[spec.name], self.attempts.purses.get(spec.name)
            if spec.budget is None or spec.price is None:
                kept = None
            elif kept is None or (kept.budget, kept.price) != (spec.budget, spec.price):
                name, tells = f"{self.fleet.model}/{spec.name}", _TellsOfMoney(tier, self._events)
                kept = Purse(name, spec.budget, spec.price, self.store, tells)
            if kept is not None:
                purses[spec.name] = kept
            tier.purse = kept
            tier.changed()
        self.attempts.purses = purses

    async def _sync_purses(self) -> None:
        """For ever."""
        while True:
            for purse in list(self.attempts.purses.values()):
                await purse.sync()
            await asyncio.sleep(PURSE_SYNC_S)

    async def _close_purses(self) -> None:
        """Gives back what was claimed and not spent."""
        if self._purse_keeper is not None:
            self._purse_keeper.cancel()
            await asyncio.gather(self._purse_keeper, return_exceptions=True)
        for purse in self.attempts.purses.values():
            await purse.close()

    def _cache(self, tier: TierSpec) -> AnswerCache:
        if tier.near is None:
            return AnswerCache(self.store, tier.max_age_s)
        embeddings = Embeddings(tier.near)
        self._embeddings.append(embeddings)
        near = NearQuestions(
            self.store, embeddings, tier.near.min_similarity, tier.near.kept, self.fleet.model
        )
        return AnswerCache(self.store, tier.max_age_s, near)

    async def _close_caches(self) -> None:
        """Waits a little for what is being remembered."""
        cache = self.attempts.cache
        if cache is not None and cache.near is not None:
            await cache.near.close()
        self._close_embeddings()

    def _close_embeddings(self) -> None:
        for embeddings in self._embeddings:
            embeddings.close()
        self._embeddings.clear()


class _TellsOfBreakers(pybreaker.CircuitBreakerListener):  # type: ignore[misc]
    """Counts and tells what one model's breakers do."""

    def __init__(self, model: str, telemetry: Telemetry, events: EventLog) -> None:
        self._model, self._telemetry, self._events = model, telemetry, events

    def state_change(self, cb: Any, old_state: Any, new_state: Any) -> None:
        tier, replica = cb.name.removeprefix(f"{self._model}/").split("/", 1)
        self._telemetry.count(self._telemetry.states, self._model, tier, replica, f"breaker-{new_state}")
        self._events.add("breaker", breaker_text(self._model, tier, replica, str(new_state)), time())


class _TellsOfMoney:
    """Takes a tier out while its money is spent, and tells of it."""

    def __init__(self, tier: Tier, events: EventLog) -> None:
        self._tier, self._events = tier, events

    def __call__(self, purse: Purse) -> None:
        self._tier.changed()
        self._events.add("ladder", money_text(purse), time())


class _TellsOfHealth:
    """Counts and tells how the health of one model's replicas changes."""

    def __init__(self, model: str, telemetry: Telemetry, events: EventLog) -> None:
        self._model, self._telemetry, self._events = model, telemetry, events

    def __call__(self, replica: Replica, old: Health, new: Health) -> None:
        tier = replica.breaker.name.removeprefix(f"{self._model}/").split("/", 1)[0]
        self._telemetry.count(self._telemetry.states, self._model, tier, replica.replica, new.state)
        self._events.add("health", health_text(self._model, tier, replica.replica, old, new), time())
