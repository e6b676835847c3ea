"""One replica's supervisor: starts its engine, keeps it right, restarts it, and says so in the store."""

import asyncio
import logging
import os
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from replicas.descendants import DescendantWatch
from replicas.engine_load import EngineLoad, read_load
from replicas.engine_log import EngineLog
from replicas.engines import EngineSpec, command, environment, tells_kv_events
from replicas.exit_reason import ExitReason, classify
from replicas.held_blocks import HeldBlocksTeller
from replicas.kernel import oom_kills
from replicas.lifecycle import Patience, Vitals, backoff_s, failures_after, is_right_check_due, must_go
from replicas.notice import heard, of_host, of_replica
from replicas.probe import KnownPrompt, ProbeResult, open_probe_session, probe_ready, probe_right
from replicas.registration import Registration
from state_store.child_process import ChildProcess
from state_store.prefix_news import topic_of
from state_store.protocol import StateStore
from state_store.records import ReplicaRecord

_log = logging.getLogger(__name__)
_START_CHECK_EVERY_S = 0.25
_DRAIN_CHECK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One managed replica: who it is, and which engine it runs."""

    replica: str
    model: str
    """The name that clients ask for."""
    tier: str
    engine: EngineSpec
    zone: str = ""
    mig_slice: str = ""
    """In words; empty where it has none."""
    host: str = "127.0.0.1"
    """Where its engine listens and others reach it."""
    heartbeat_s: float = 1.0
    start_timeout_s: float = 300.0
    known: KnownPrompt = field(default_factory=KnownPrompt)
    """Without `expect`, the first answer that makes sense is the known one from then on."""


class Supervisor:
    """Runs one replica until stopped. Nothing of its engine outlives it, even when this process is killed."""

    def __init__(
        self,
        spec: ReplicaSpec,
        store: StateStore,
        *,
        patience: Patience | None = None,
        progress: Callable[[str], None] = _log.info,
        log_folder: Path | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._spec = spec
        self._patience = patience or Patience()
        self._progress = progress
        self._log_folder = log_folder
        self._rng = rng or random.Random()
        self._store = store
        self._engine = spec.engine
        """As it is started."""
        self._held: HeldBlocksTeller | None = None
        self._registration = Registration(store, self.record)
        self._session: aiohttp.ClientSession | None = None
        self._log = EngineLog(Path())
        self._known = spec.known
        self._child: ChildProcess | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._ready = asyncio.Event()
        self._finished = asyncio.Event()
        self.state = "starting"
        """`starting`, `ready`, `draining` or `down`, as in the record."""
        self.reason = ""
        self.url = ""
        self.restarts = 0
        self.last_exit: ExitReason | None = None
        self.is_leaving = False
        self.ready_since = 0.0
        self.is_vacated = False
        """Whether it was told that it will be taken away."""
        self.cold_start_s: float | None = None
        """What its last start took; None before one succeeded."""

    @property
    def engine_pid(self) -> int:
        """0 while no engine runs."""
        return self._child.pid if self._child is not None and not self._child.has_exited else 0

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"

    @property
    def is_in_store(self) -> bool:
        """Whether the last heartbeat reached the store."""
        return self._registration.is_in_store

    def record(self) -> ReplicaRecord:
        """What the store is told, as of now."""
        spec = self._spec
        return ReplicaRecord(
            replica=spec.replica,
            model=spec.model,
            tier=spec.tier,
            url=self.url,
            served_model=spec.engine.served_model,
            state=self.state,
            reason=self.reason,
            zone=spec.zone,
            slots=spec.engine.slots,
            heartbeat_s=spec.heartbeat_s,
            as_of=time.time(),
            engine_pid=self.engine_pid,
            restarts=self.restarts,
            held_blocks=len(self._held.held) if self._held is not None else 0,
            is_leaving=self.is_leaving,
            ready_since=self.ready_since,
            mig_slice=spec.mig_slice,
        )

    async def until_ready(self) -> None:
        """Returns when the engine is ready and right; at once when it is."""
        await self._ready.wait()

    async def load(self) -> EngineLoad | None:
        """What the engine has to do; None when there is none, or it does not say."""
        if not self.engine_pid or self._session is None:
            return None
        key = self._spec.engine.api_key
        return await read_load(self._session, self.url, api_key=key, timeout_s=self._patience.check_timeout_s)

    async def run(self) -> None:
        """Supervises until cancelled or stopped, and returns when no process of the engine is left."""
        if self._is_stopping:
            return
        self._session = open_probe_session()
        own_folder = None if self._log_folder else tempfile.mkdtemp(prefix="graceway-replica-")
        self._log = EngineLog(Path(self._log_folder or own_folder or "") / f"{self._spec.replica}.log")
        beating = asyncio.create_task(self._beat(), name=f"{self._spec.replica} heartbeats")
        heeding = asyncio.create_task(self._heed_notices(), name=f"{self._spec.replica} notices")
        self._supervising = asyncio.create_task(self._supervise(), name=f"{self._spec.replica} engine")
        try:
            await self._supervising
        except asyncio.CancelledError:
            if not self._is_stopping:
                raise
        finally:
            beating.cancel()
            await self._end(beating)
            heeding.cancel()
            await asyncio.gather(heeding, return_exceptions=True)
            if own_folder:
                shutil.rmtree(own_folder, ignore_errors=True)

    async def _beat(self) -> None:
        """Tells that it lives, and what its engine holds where that can say so, until cancelled."""
        if not tells_kv_events(self._spec.engine):
            await self._registration.keep()
            return
        # A socket's path may have 107 bytes.
        with tempfile.TemporaryDirectory(prefix="gw-kv-") as folder:
            endpoint = f"ipc://{folder}/events"
            spec, topic = self._spec, topic_of(self._spec.model)
            self._engine = replace(spec.engine, kv_events=endpoint)
            self._held = HeldBlocksTeller(spec.replica, topic, endpoint, self._store)
            await asyncio.gather(self._registration.keep(), self._held.run())

    async def _heed_notices(self) -> None:
        """Vacates when it is told to, by its own name or that of its host."""
        subjects = of_replica(self._spec.replica), of_host(self._spec.host)
        while (notice := await heard(self._store, *subjects)) is None:  # noqa: ASYNC110 - others write it
            await asyncio.sleep(self._spec.heartbeat_s)
        await self.vacate(notice.left_s(time.time()))

    async def stop(self) -> None:
        """Ends the engine and `run`; returns when both have ended."""
        self._is_stopping = True
        if self._supervising is not None:
            self._supervising.cancel()
            await self._finished.wait()

    def leave(self) -> None:
        """Says that it goes as soon as another can take over; it serves as ever."""
        self.is_leaving = True
        self._registration.announce()

    async def vacate(self, grace_s: float) -> None:
        """Is gone within `grace_s`: sessions and new requests go elsewhere at once, streams that last longer at the end."""
        self._say(f"will be taken away in {grace_s:.0f} s; draining")
        self.is_vacated = True
        await self.drain(max(0.0, grace_s - self._patience.stop_grace_s), "will be taken away")
        await self.stop()

    async def drain(self, grace_s: float, reason: str = "draining") -> bool:
        """Takes no new requests and waits up to `grace_s` for those under way. True when none is left."""
        deadline = time.monotonic() + grace_s
        is_starting = self.state == "starting"
        self._enter("draining", reason)
        if is_starting:
            # Nobody has sent it anything yet, and it could not say so: it may not answer for minutes.
            return True
        await asyncio.sleep(min(self._patience.drain_settle_s, grace_s))
        while self.engine_pid:
            load = await self.load()
            if load is not None and load.is_idle:
                return True
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_DRAIN_CHECK_EVERY_S)
        return True

    async def _end(self, beating: asyncio.Task[None]) -> None:
        if self._child is not None:
            await self._child.stop()
        with suppress(asyncio.CancelledError):
            await beating
        await self._registration.withdraw()
        if self._session is not None:
            await self._session.close()
        self._finished.set()

    async def _supervise(self) -> None:
        failures = 0
        while True:
            reason, ready_for_s = await self._run_engine()
            self.last_exit = reason
            if self.state == "draining":
                return
            failures = failures_after(failures, ready_for_s, reason, self._patience)
            wait_s = backoff_s(failures, self._patience, self._rng)
            self._say(f"{reason.text}; starting again in {wait_s:.1f} s")
            await asyncio.sleep(wait_s)
            self.restarts += 1

    async def _run_engine(self) -> tuple[ExitReason, float]:
        """One engine from start to end: why it ended, and for how many seconds it was ready."""
        kills_before = oom_kills()
        try:
            child = await self._launch()
        except OSError as error:
            self._enter("down", f"could not start: {error}")
            return ExitReason("crashed", f"could not start: {error}"), 0.0
        started_at = time.monotonic()
        fault = await self._unless_exited(child, self._until_right())
        ready_at = time.monotonic()
        if fault is None and not child.has_exited:
            # Before anybody hears that it is ready, so that no end of a process is missed.
            with closing(DescendantWatch(child.pid)) as watch:
                self.cold_start_s = ready_at - started_at
                self._enter("ready", "")
                self._say(f"ready at {self.url}")
                fault = await self._unless_exited(child, self._patrol(watch))
        ready_for_s = time.monotonic() - ready_at
        if child.has_exited:
            code = (await child.exited()).code
            fault = classify(code, self._log.tail(), oom_kills=oom_kills() - kills_before)
        assert fault is not None
        self._enter("down", fault.text)
        await child.stop()
        return fault, ready_for_s

    async def _launch(self) -> ChildProcess:
        spec = self._spec
        port = _free_port(spec.host)
        self.url = f"http://{spec.host}:{port}"
        self._log.begin()
        if self._held is not None:
            self._held.begin()
        self._child = await ChildProcess.start(
            command(self._engine, port, spec.host),
            env=environment(self._engine, os.environ, len(os.sched_getaffinity(0))),
            log_path=self._log.path,
            grace_s=self._patience.stop_grace_s,
        )
        self._enter("starting", f"starting {spec.engine.kind}")
        self._say(f"starting {spec.engine.kind} (pid {self._child.pid})")
        return self._child

    async def _unless_exited(
        self, child: ChildProcess, work: Coroutine[None, None, ExitReason | None]
    ) -> ExitReason | None:
        """The outcome of `work`, or None as soon as the engine has exited."""
        working = asyncio.create_task(work)
        exiting = asyncio.create_task(child.exited())
        try:
            await asyncio.wait((working, exiting), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() and not child.has_exited else None
        finally:
            for task in (working, exiting):
                task.cancel()
            await asyncio.gather(working, exiting, return_exceptions=True)

    async def _until_right(self) -> ExitReason | None:
        """None when the engine is ready and has answered the known prompt rightly."""
        last = "no answer"
        try:
            async with asyncio.timeout(self._spec.start_timeout_s):
                while not (ready := await self._probe_ready()).is_ok:
                    last = ready.reason
                    for milestone in self._log.milestones():
                        self._say(milestone)
                    await asyncio.sleep(_START_CHECK_EVERY_S)
        except TimeoutError:
            return ExitReason("hung", f"not ready within {self._spec.start_timeout_s:g} s: {last}")
        right = await self._probe_right(self._patience.first_right_timeout_s)
        if right.is_ok:
            self._known = replace(self._known, expect=self._known.expect or right.answer)
            return None
        return ExitReason("wrong" if right.kind == "wrong" else "hung", right.reason)

    async def _patrol(self, watch: DescendantWatch) -> ExitReason | None:
        checking = asyncio.create_task(self._check_until_ill())
        try:
            await asyncio.wait((checking, watch.ended), return_when=asyncio.FIRST_COMPLETED)
            if watch.ended.done():
                return ExitReason("crashed", f"its process {watch.ended.result()} ended")
            return checking.result()
        finally:
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)

    async def _check_until_ill(self) -> ExitReason:
        now = time.monotonic()
        vitals = Vitals(answered_at=now, right_checked_at=now)
        right: asyncio.Task[ProbeResult] | None = None
        try:
            while (reason := must_go(vitals, time.monotonic(), self._patience)) is None:
                await asyncio.sleep(self._patience.check_every_s)
                health, load = await asyncio.gather(self._probe_ready(), self.load())
                now = time.monotonic()
                vitals = vitals.with_health(health, now).with_load(load, now)
                # Apart from the others: it waits its turn in the engine, and they must not wait for it.
                if right is not None and right.done():
                    vitals = self._note_right(vitals, right.result())
                    right = None
                if right is None and is_right_check_due(vitals, now, self._patience):
                    right = asyncio.create_task(self._probe_right(self._patience.right_timeout_s))
                    vitals = replace(vitals, right_checked_at=now)
                self._log.trim()
            return reason
        finally:
            if right is not None:
                right.cancel()

    def _note_right(self, vitals: Vitals, right: ProbeResult) -> Vitals:
        vitals = vitals.with_right(right, vitals.right_checked_at)
        if right.kind == "wrong":
            self._enter("down", right.reason)
        elif right.is_ok and self.state == "down":
            self._enter("ready", "")
        return vitals

    async def _probe_ready(self) -> ProbeResult:
        engine = self._spec.engine
        assert self._session is not None
        return await probe_ready(
            self._session,
            self.url,
            served_model=engine.served_model,
            api_key=engine.api_key,
            timeout_s=self._patience.check_timeout_s,
        )

    async def _probe_right(self, timeout_s: float) -> ProbeResult:
        engine = self._spec.engine
        assert self._session is not None
        return await probe_right(
            self._session,
            self.url,
            served_model=engine.served_model,
            known=self._known,
            api_key=engine.api_key,
            timeout_s=timeout_s,
        )

    def _enter(self, state: str, reason: str) -> None:
        # A draining replica takes no requests any more, whatever its engine does.
        if self.state != "draining":
            began = self.ready_since or time.time()
            self.ready_since = began if state == "ready" else 0.0
            self.state, self.reason = state, reason
        (self._ready.set if self.is_ready else self._ready.clear)()
        self._registration.announce()

    def _say(self, line: str) -> None:
        self._progress(f"{self._spec.replica}: {line}")


def _free_port(host: str) -> int:
    # Another process may take it before the engine does; then the engine says so and is started on the next
    # one.
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
