"""The gateway as one object: it holds what the specs describe, starts and stops it, and answers requests."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from functools import partial
from random import Random
from time import perf_counter, time
from typing import Any

from gateway.archive import Archive, Watched
from gateway.callers import Callers
from gateway.chronicle import Chronicle, Look
from gateway.config_standing import ConfigStanding, NewConfig, refused
from gateway.errors import ModelNotFound
from gateway.events import Event, EventLog, refusal_text, reload_text
from gateway.exercise import Exercise
from gateway.http import Asgi, HttpApi
from gateway.line_writer import LineWriter
from gateway.load_reports import LoadReports
from gateway.log_lines import request_json, request_text
from gateway.loop_lag import LoopLag
from gateway.pin import Pin
from gateway.preemption import Preemption
from gateway.quotas import QuotaExchange
from gateway.recorder import Recorder, TakeTrail
from gateway.reply import Reply
from gateway.request import Request
from gateway.served_model import ServedModel
from gateway.shares import TierShares
from gateway.specs import GatewaySpec, LogSpec, TracingSpec
from gateway.status import (
    config_gauges,
    gauges,
    ladder_of,
    look,
    model_standing,
    model_status,
    quality_gap,
    span_samples,
)
from gateway.surface import build_surface
from gateway.telemetry import Sample, Samples, Telemetry
from gateway.trace_exporter import TraceExporter
from gateway.trail import Trail
from replicas.notice import Notice, give
from state_store.guarded import GuardedStateStore
from state_store.protocol import StateStore

log = logging.getLogger("graceway.events")

Json = dict[str, Any]
UNHEARD_OF = 2
"""Gateways that there are taken to be, for quotas, until the store has told."""


class Gateway:
    """Everything behind one HTTP surface. `asgi` is the application to serve.

    Args:
        spec: models, tiers, tuning.
        store: the shared state; it is guarded here, so that a dead one costs no request anything.
        lines: where finished requests are told, if the spec wants them to be.
    """

    def __init__(
        self,
        spec: GatewaySpec,
        store: StateStore,
        rng: Random | None = None,
        lines: LineWriter | None = None,
    ) -> None:
        self.spec = spec
        self._lines = lines
        self._recorder = Recorder(_request_log(spec.log, lines))
        self._exporter: TraceExporter | None = None
        self._sharers = UNHEARD_OF if isinstance(store, GuardedStateStore) else 1
        self.callers = Callers(spec.keys, sharers=self._sharers)
        self._quotas = QuotaExchange(store, lambda: self.callers)
        self._rng = rng or Random()
        self._store = store
        self.telemetry = Telemetry(self._gauges, self._spans)
        self._models: dict[str, ServedModel] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._started_at = time()
        self.id = f"{socket.gethostname()}:{os.getpid()}"
        self.events = EventLog(_log_event)
        self._loads = LoadReports(
            self.id, store, lambda: [(m.fleet, m.sessions) for m in self._models.values()]
        )
        self._loop_lag = LoopLag(self.telemetry.loop_lag_s.of().add)
        if isinstance(store, GuardedStateStore):
            store.took = self.telemetry.store_s.of().add
        self._archive = Archive(f"{self.id}:{self._started_at:.0f}", store, self.events, self._watched)
        self._chronicle = Chronicle(self.events, self._looks, self._store_failure)
        self.config = ConfigStanding(self._started_at)
        self.read_config: Callable[[], Awaitable[NewConfig]] | None = None
        """Reads the config anew; raises ValueError with what is wrong."""
        for name in spec.models:
            self._add(name)
        self.asgi: Asgi = HttpApi(
            self, build_surface(self), lambda: self.spec.max_body_bytes, lambda: self.spec.limits
        )

    def _add(self, name: str) -> ServedModel:
        served = ServedModel(
            name, self.spec, self._store, self._rng, self.telemetry, TierShares(), self.events
        )
        self._models[name] = served
        return served

    async def start(self) -> None:
        """Begins to watch the replicas; returns when each has been probed once, or after two seconds."""
        self._trace()
        await asyncio.gather(*(m.start() for m in self._models.values()))
        await self._quotas.join()
        await self._archive.open()
        self._chronicle.start()
        self._loads.start()
        self._loop_lag.start()

    async def stop(self) -> None:
        """Stops watching, and closes what is open."""
        await self._chronicle.stop()
        await self._loads.stop()
        await self._loop_lag.stop()
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.stop)
        await self._quotas.stop()
        await self._archive.stop()
        for retiring in self._retiring:
            retiring.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)
        for model in self._models.values():
            await model.stop()
        await self._store.close()

    def _trace(self) -> None:
        """Sends spans where the spec wants them, from now on."""
        tracing, old = self.spec.tracing, self._exporter
        if (old.spec if old is not None else TracingSpec()) != tracing:
            self._exporter = None if tracing.url is None else TraceExporter(tracing)
            if self._exporter is not None:
                self._exporter.start()
            if old is not None:
                # What it still has goes out; nothing waits for that here.
                asyncio.get_running_loop().run_in_executor(None, old.stop)
        self._recorder.trace_to(None if self._exporter is None else self._exporter.take, tracing)

    def begin_drain(self) -> None:
        """Says that it is not ready any more; what comes all the same is still served."""
        self._is_draining = True
        self.events.add(
            "gateway", "the gateway drains: it finishes what it has and is not ready any more", time()
        )

    async def reload(self, spec: GatewaySpec, needs_restart: tuple[str, ...] = ()) -> None:
        """Puts a new configuration in force, but for what waits for a restart. Nothing in flight is dropped."""
        self.spec, self.config = spec, ConfigStanding(time(), needs_restart)
        self.callers = Callers(spec.keys, self.callers, self._sharers)
        self._trace()
        before = set(self._models)
        for name in [n for n in self._models if n not in spec.models]:
            retiring = asyncio.create_task(self._models.pop(name).retire(), name=f"retire {name}")
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)
        for name, model in spec.models.items():
            if name in self._models:
                self._models[name].take(model, spec)
            else:
                await self._add(name).start()
        self.events.add("gateway", reload_text(before, set(spec.models), needs_restart), time())

    def refuse_config(self, wrong: str) -> None:
        """Takes note that the file's config is refused, and of where it is wrong."""
        self.config = refused(self.config, wrong, time())
        self.events.add("gateway", refusal_text(self.config.refused_because), time())

    async def follow(self, spec: GatewaySpec, standing: ConfigStanding) -> None:
        """Takes over what another process, whose file it is, has made of the config."""
        if spec != self.spec:
            await self.reload(spec, standing.needs_restart)
        if standing.refused_at not in (None, self.config.refused_at):
            self.events.add("gateway", refusal_text(standing.refused_because), time())
        self.config = standing

    async def reload_from_file(self) -> str | None:
        """Re-reads the config; what is wrong with it, or None."""
        if self.read_config is None:
            return "this gateway was not started from a file"
        try:
            new = await self.read_config()
        except ValueError as error:
            self.refuse_config(str(error))
            return f"it is refused, and the one before stays in force. {error}"
        await self.reload(new.spec, new.needs_restart)
        return None

    def pin(self, pin: Pin) -> None:
        """Does what an operator asks of a ladder.

        Raises:
            ValueError: there is no such model or tier.
        """
        name = self._named(pin.model)
        ladder = self._models[name].ladder
        try:
            if pin.tier is None:
                ladder.release()
            elif pin.share is None:
                ladder.pin(pin.tier, pin.for_s)
            else:
                ladder.override(pin.tier, pin.share, pin.for_s)
        except KeyError as error:
            raise ValueError(f"'{name}' has no tier {error}") from error
        self.events.add("ladder", _pin_text(name, pin), time())

    async def preempt(self, told: Preemption) -> list[str]:
        """Has the supervisors of managed replicas that will be taken away drain them; the replicas' names.

        Raises:
            ValueError: no managed replica is meant.
            StateStoreUnavailable: nobody can be told.
        """
        concerned = [
            replica.replica
            for model in self._models.values()
            for tier in model.fleet.tiers.values()
            if tier.spec.is_managed
            for replica in tier.replicas.values()
            if told.concerns(replica.replica, replica.origin.host)
        ]
        if not concerned:
            raise ValueError(f"no replica that Graceway started is {told.replica or f'on {told.host}'}")
        await give(self._store, told.subject, Notice(time(), told.grace_s))
        names = ", ".join(concerned)
        self.events.add("health", f"{names} will be taken away in {told.grace_s:g} s", time())
        return concerned

    def exercised(self, exercise: Exercise) -> None:
        """Takes note of what came of drilling a tier.

        Raises:
            ValueError: there is no such model or tier.
        """
        name, tier = self._named(exercise.model), exercise.tier
        if tier not in self._models[name].fleet.tiers:
            raise ValueError(f"'{name}' has no tier '{tier}'")
        self._models[name].exercised.drilled(tier, exercise.passed, exercise.detail, time())
        self.events.add("ladder", exercise.text(name), time())

    def _named(self, model: str | None) -> str:
        """The model of that name, or the only one."""
        names = list(self._models)
        name = model or (names[0] if len(names) == 1 else "")
        if name not in names:
            raise ValueError(f"name a model: one of {', '.join(names)}")
        return name

    async def answer(self, request: Request, reply: Reply) -> None:
        """Answers one request.

        Raises:
            Unauthorized, Forbidden, ModelNotFound, BadRequest
        """
        with self._recorder.begin(request) as trail:
            await self._answer(request, reply, trail)

    async def _answer(self, request: Request, reply: Reply, trail: Trail) -> None:
        began_at = perf_counter()
        request = self.callers.admit(request)
        if self.callers.are_needed:
            trail.admitted(request, began_at)
        model = self._models.get(request.model)
        if model is None:
            raise ModelNotFound(request.model)
        model.ledger.parsed(began_at - request.received_at)
        time = asyncio.get_running_loop().time
        shed = self.callers.reserve(request, time())
        if shed is not None:
            model.ledger.shed(request, shed, trail)
            await reply.refuse(shed, request.request_id)
            model.ledger.turned_away(request)
            return
        try:
            used_tokens = await model.pipeline.answer(request, reply, trail)
        except Exception:
            # Not for a client that left: what it had generated is not known here, so its estimate stands.
            self.callers.settle(request, 0)
            raise
        finally:
            self.callers.end(request)
        self.callers.settle(request, used_tokens)

    # what it shows

    @property
    def admin_key(self) -> str | None:
        return self.spec.admin_key

    @property
    def is_ready(self) -> bool:
        """Whether it can serve every model, and is to stay."""
        return not self._is_draining and all(m["ready"] for m in self.status()["models"].values())

    def models(self) -> Json:
        cards = [
            {"id": name, "object": "model", "created": int(self._started_at), "owned_by": "graceway"}
            for name in self._models
        ]
        return {"object": "list", "data": cards}

    def status(self) -> Json:
        now = asyncio.get_running_loop().time()
        models = {name: self._model_status(m, now) for name, m in self._models.items()}
        return {
            "now": time(),
            "gateway": {"id": self.id, "started_at": self._started_at},
            "ready": not self._is_draining and all(m["ready"] for m in models.values()),
            "draining": self._is_draining,
            "config": asdict(self.config),
            "models": models,
            "state_store": self._store_status(),
            "queue": {
                name: sum(len(t.room) for t in m.fleet.tiers.values()) for name, m in self._models.items()
            },
            "sessions": sum(len(m.sessions) for m in self._models.values()),
            "sessions_unsaved": sum(m.sessions.unsaved for m in self._models.values()),
            "events": [asdict(e) for e in self.events.newest()],
        }

    def _model_status(self, model: ServedModel, now: float) -> Json:
        standing = model_standing(model.fleet, model.shares, now)
        since = self._chronicle.since(model.fleet.model, standing)
        told = model_status(model.fleet, model.shares, model.exercised, now)
        for tier in told["tiers"]:
            tier["override_ends_in_s"] = model.ladder.expires_in_s(tier["name"], time())
        return told | {
            "standing": {**asdict(standing), "since": since},
            "ladder_peers": model.ladder.peers,
        }

    def _looks(self) -> dict[str, Look]:
        now = asyncio.get_running_loop().time()
        return {name: look(m.fleet, m.shares, now) for name, m in self._models.items()}

    def _watched(self) -> dict[str, Watched]:
        return {
            name: Watched(m.shares, {t.name: t.share for t in m.fleet.tiers.values() if t.share < 1.0})
            for name, m in self._models.items()
        }

    async def chronicle(self) -> Json:
        """What happened in the last hours, on every gateway of the store, and what the ladders are."""
        models = {name: ladder_of(m.fleet) for name, m in self._models.items()}
        now = time()
        told = await self._archive.told(now)
        return {"now": now, "models": models, "pages": told.pages, "is_whole": told.is_whole}

    def _store_failure(self) -> str | None:
        store = self._store_status()
        return None if store["available"] else str(store["error"])

    def _store_status(self) -> Json:
        store = self._store
        if not isinstance(store, GuardedStateStore):
            return {"url": "memory", "available": True, "since": self._started_at}
        return {
            "url": store.address,
            "available": store.is_available,
            "since": store.since,
            "error": store.last_error,
        }

    def metrics(self) -> bytes:
        return self.telemetry.exposition()

    def _gauges(self) -> Iterator[Sample]:
        now = asyncio.get_running_loop().time()
        available = float(self._store_status()["available"])
        yield "graceway_store_available", "1 while the state store answers", {}, available
        yield "graceway_tasks", "Tasks on the event loop", {}, float(len(asyncio.all_tasks()))
        yield from config_gauges(self.config)
        yield from self._seeing()
        for model in self._models.values():
            yield from gauges(model.fleet, model.exercised, now)
            of_model = {"model": model.fleet.model}
            gap = quality_gap(model.fleet, model.shares, now)
            yield "graceway_quality_gap", "Of the last minute's answers, to the best tier's", of_model, gap
            yield "graceway_ladder_peers", "Other gateways that agree on shares", of_model, model.ladder.peers

    def _spans(self) -> Iterator[Samples]:
        for model in self._models.values():
            yield from span_samples(model.fleet)

    def _seeing(self) -> Iterator[Sample]:
        """What is lost of what it says about itself."""
        dropped = self._lines.dropped if self._lines is not None else 0
        yield "graceway_log_lines_dropped_total", "Lines that nobody took in time", {}, float(dropped)
        if self._exporter is not None:
            for result, count in (("exported", self._exporter.exported), ("dropped", self._exporter.dropped)):
                help_ = "Sampled requests by what became of their spans"
                yield "graceway_traces_total", help_, {"result": result}, float(count)


def _pin_text(model: str, pin: Pin) -> str:
    if pin.tier is None:
        return f"an operator left {model} to its signals again"
    if pin.share is None:
        return f"an operator pinned {model} to {pin.tier} for {pin.for_s:g} s"
    return f"an operator gave {pin.tier} ({model}) {pin.share:.0%} of its traffic for {pin.for_s:g} s"


def _request_log(spec: LogSpec, lines: LineWriter | None) -> TakeTrail | None:
    if lines is None or not spec.has_requests:
        return None
    return partial(lines.take, request_json if spec.format == "json" else request_text)


def _log_event(event: Event) -> None:
    log.info("%s", event.text, extra={"event": event.kind})
