"""A supervisor on simulated engines in real processes: every way an engine can fail, and what is left afterwards."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from replicas.engines import EngineSpec
from replicas.lifecycle import Patience
from replicas.notice import Notice, give, of_host, of_replica
from replicas.supervisor import ReplicaSpec, Supervisor
from state_store.embedded import EmbeddedRedis
from state_store.memory import MemoryStateStore
from state_store.open import open_state_store
from state_store.protocol import StateStore
from state_store.records import REPLICAS, ReplicaRecord

ROOT = Path(__file__).parents[2]
SIMULATED = (sys.executable, "-m", "loadtests.engine", "--host", "{host}", "--port", "{port}")
SERVED = ("--served-model", "{served_model}", "--slots", "{slots}")
QUICK = Patience(
    check_every_s=0.1,
    check_timeout_s=0.5,
    right_every_s=0.5,
    right_timeout_s=0.5,
    hung_after_s=2.0,
    backoff_s=0.1,
    backoff_max_s=0.4,
    stop_grace_s=1.0,
    drain_settle_s=0.1,
)


def engine(*options: str, **changes: Any) -> EngineSpec:
    settings: dict[str, Any] = {"kind": "command", "model": "m", "served_model": "m", "slots": 2}
    settings |= {"argv": (*SIMULATED, *SERVED), "extra_args": options, "env": {"PYTHONPATH": str(ROOT)}}
    return EngineSpec(**settings | changes)


def replica(spec: EngineSpec | None = None, **changes: Any) -> ReplicaSpec:
    return ReplicaSpec(
        "r-0", "chat", "primary", spec or engine(), **{"heartbeat_s": 0.2, "zone": "a"} | changes
    )


async def until(condition: Callable[[], Awaitable[bool] | bool], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Rig:
    """Supervisors that a test starts; all are stopped at its end, and nothing may be left of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self.said: list[str] = []

    async def start(self, spec: ReplicaSpec, store: StateStore, patience: Patience = QUICK) -> Supervisor:
        supervisor = Supervisor(
            spec, store, patience=patience, progress=self.said.append, log_folder=self._folder
        )
        running = asyncio.create_task(supervisor.run())
        self._stack.push_async_callback(self._end, supervisor, running)
        return supervisor

    async def _end(self, supervisor: Supervisor, running: asyncio.Task[None]) -> None:
        pid = supervisor.engine_pid
        await supervisor.stop()
        await running
        assert not pid or not is_running(pid)

    async def close(self) -> None:
        await self._stack.aclose()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    opened = Rig(tmp_path)
    yield opened
    await opened.close()


async def record_of(store: StateStore) -> ReplicaRecord | None:
    raw = await store.get(REPLICAS, "r-0")
    return None if raw is None else ReplicaRecord.from_bytes(raw)


async def is_in_state(store: StateStore, state: str) -> bool:
    record = await record_of(store)
    return record is not None and record.state == state


async def fault(url: str, kind: str, **details: object) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + "/sim/fault", json={"kind": kind, **details}) as response,
    ):
        response.raise_for_status()


async def complete(url: str, max_tokens: int) -> int:
    """The tokens of a completion."""
    body = {"model": "m", "prompt": "hello", "max_tokens": max_tokens, "ignore_eos": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + "/v1/completions", json=body) as response,
    ):
        tokens: int = (await response.json())["usage"]["completion_tokens"]
        return tokens


async def test_a_replica_registers_when_right_and_withdraws_when_stopped(rig: Rig) -> None:
    store = MemoryStateStore()
    supervisor = await rig.start(replica(), store)
    await until(lambda: is_in_state(store, "starting"))
    await until(lambda: is_in_state(store, "ready"))
    await supervisor.until_ready()
    record = await record_of(store)
    assert record is not None
    assert (record.model, record.tier, record.zone, record.slots) == ("chat", "primary", "a", 2)
    assert (record.served_model, record.restarts, record.reason) == ("m", 0, "")
    assert is_running(record.engine_pid)
    assert await complete(record.url, 3) == 3
    first = record.as_of
    await until(lambda: _is_renewed(store, first))
    await supervisor.stop()
    assert await store.scan(REPLICAS) == {}
    assert not is_running(record.engine_pid)
    assert any("ready at http://127.0.0.1" in line for line in rig.said)


async def _is_renewed(store: StateStore, first: float) -> bool:
    record = await record_of(store)
    return record is not None and record.as_of > first


async def test_death_shows_in_the_store_at_once_and_heals(rig: Rig) -> None:
    store = MemoryStateStore()
    supervisor = await rig.start(replica(heartbeat_s=30.0), store, Patience(backoff_s=1.0))
    await supervisor.until_ready()
    url, pid = supervisor.url, supervisor.engine_pid
    begun = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    await until(lambda: is_in_state(store, "down"))
    # 100 ms is the aim; the rest is for a machine on which other tests run.
    assert time.monotonic() - begun < 0.5
    record = await record_of(store)
    assert record is not None
    assert record.reason == "killed by SIGKILL"
    await supervisor.until_ready()
    assert supervisor.engine_pid != pid
    assert supervisor.restarts == 1
    assert await complete(supervisor.url, 3) == 3
    assert url != ""
    assert supervisor.last_exit is not None
    assert supervisor.last_exit.kind == "killed"


@pytest.mark.parametrize(
    ("kind", "details", "exit_kind"),
    [
        ("wrong", {}, "wrong"),
        ("garbage", {"text": "!"}, "wrong"),
        ("unhealthy", {}, "hung"),
        ("hang", {}, "hung"),
        ("error", {"status": 500}, "hung"),
    ],
)
async def test_an_engine_that_runs_but_is_ill_is_restarted(
    rig: Rig, kind: str, details: dict[str, object], exit_kind: str
) -> None:
    store = MemoryStateStore()
    supervisor = await rig.start(replica(), store)
    await supervisor.until_ready()
    await fault(supervisor.url, kind, **details)
    await until(lambda: supervisor.restarts == 1)
    assert supervisor.last_exit is not None
    assert supervisor.last_exit.kind == exit_kind
    await supervisor.until_ready()
    assert await complete(supervisor.url, 3) == 3


async def test_a_frozen_engine_is_restarted(rig: Rig) -> None:
    supervisor = await rig.start(replica(), MemoryStateStore())
    await supervisor.until_ready()
    pid = supervisor.engine_pid
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: supervisor.restarts == 1)
    assert not is_running(pid)
    await supervisor.until_ready()


async def test_a_wrong_answer_takes_the_replica_out_before_it_is_restarted(rig: Rig) -> None:
    store = MemoryStateStore()
    patience = Patience(check_every_s=0.1, right_every_s=0.3, wrong_after=1000)
    supervisor = await rig.start(replica(), store, patience)
    await supervisor.until_ready()
    await fault(supervisor.url, "wrong")
    await until(lambda: is_in_state(store, "down"))
    record = await record_of(store)
    assert record is not None
    assert "instead of" in record.reason
    await fault(supervisor.url, "none")
    await until(lambda: is_in_state(store, "ready"))
    assert supervisor.restarts == 0


async def test_busy_is_not_dead(rig: Rig) -> None:
    """Slots taken for far longer than an engine may be silent; the known prompt has to wait its turn."""
    supervisor = await rig.start(replica(engine("--token-ms", "20")), MemoryStateStore())
    await supervisor.until_ready()
    long = [asyncio.create_task(complete(supervisor.url, 250)) for _ in range(2)]
    assert await asyncio.gather(*long) == [250, 250]
    assert supervisor.restarts == 0
    assert supervisor.is_ready


async def test_an_engine_that_never_starts_is_tried_ever_more_seldom(rig: Rig, tmp_path: Path) -> None:
    spec = engine(
        argv=(sys.executable, "-c", "import sys; print('error: failed to load model x'); sys.exit(1)")
    )
    store = MemoryStateStore()
    supervisor = await rig.start(
        replica(spec, heartbeat_s=0.05), store, Patience(backoff_s=0.01, backoff_max_s=0.5)
    )
    await until(lambda: supervisor.restarts == 2)
    assert supervisor.last_exit is not None
    assert supervisor.last_exit.kind == "bad_config"
    assert "failed to load model x" in supervisor.last_exit.text
    # A wrong config goes to the longest wait at once.
    assert any("starting again in 0.4" in line or "starting again in 0.5" in line for line in rig.said)


async def test_an_engine_that_is_not_ready_in_time_is_restarted(rig: Rig) -> None:
    spec = engine(argv=(sys.executable, "-c", "import time; time.sleep(600)"))
    supervisor = await rig.start(replica(spec, start_timeout_s=0.5), MemoryStateStore())
    await until(lambda: supervisor.restarts == 1)
    assert supervisor.last_exit is not None
    assert "not ready within 0.5 s" in supervisor.last_exit.text


async def test_an_engine_that_answers_wrongly_from_the_start_never_becomes_ready(rig: Rig) -> None:
    store = MemoryStateStore()
    supervisor = await rig.start(replica(engine("--fault", json.dumps({"kind": "garbage"}))), store)
    await until(lambda: supervisor.restarts == 2)
    assert supervisor.last_exit is not None
    assert supervisor.last_exit.kind == "wrong"
    assert not any("ready at" in line for line in rig.said)


async def test_drain_waits_for_what_is_under_way_and_takes_itself_out_first(rig: Rig) -> None:
    store = MemoryStateStore()
    supervisor = await rig.start(replica(engine("--token-ms", "10")), store)
    await supervisor.until_ready()
    under_way = asyncio.create_task(complete(supervisor.url, 80))
    await until(lambda: _is_busy(supervisor))
    draining = asyncio.create_task(supervisor.drain(20.0))
    await until(lambda: is_in_state(store, "draining"))
    assert not under_way.done()
    assert await draining
    assert await under_way == 80


async def _is_busy(supervisor: Supervisor) -> bool:
    load = await supervisor.load()
    return load is not None and load.running > 0


async def test_drain_gives_up_at_its_grace(rig: Rig) -> None:
    supervisor = await rig.start(replica(engine("--token-ms", "50")), MemoryStateStore())
    await supervisor.until_ready()
    under_way = asyncio.create_task(complete(supervisor.url, 2000))
    await until(lambda: _is_busy(supervisor))
    begun = time.monotonic()
    assert not await supervisor.drain(0.5)
    assert time.monotonic() - begun < 2.0
    await supervisor.stop()
    with pytest.raises(aiohttp.ClientError):
        await under_way


@pytest.mark.parametrize("subject", [of_replica("r-0"), of_host("127.0.0.1")])
async def test_told_that_it_will_be_taken_away_it_finishes_and_ends(rig: Rig, subject: str) -> None:
    store = MemoryStateStore()
    supervisor = await rig.start(replica(engine("--token-ms", "10")), store)
    await supervisor.until_ready()
    pid, under_way = supervisor.engine_pid, asyncio.create_task(complete(supervisor.url, 80))
    await until(lambda: _is_busy(supervisor))
    await give(store, subject, Notice(time.time(), 20.0))
    await until(lambda: is_in_state(store, "draining"))
    assert await under_way == 80
    await until(lambda: not is_running(pid))
    await until(lambda: _is_withdrawn(store))
    assert supervisor.is_vacated
    assert supervisor.restarts == 0


async def _is_withdrawn(store: StateStore) -> bool:
    return await record_of(store) is None


async def test_a_notice_that_leaves_no_time_is_kept_all_the_same(rig: Rig) -> None:
    store = MemoryStateStore()
    supervisor = await rig.start(replica(engine("--token-ms", "50")), store)
    await supervisor.until_ready()
    under_way = asyncio.create_task(complete(supervisor.url, 2000))
    await until(lambda: _is_busy(supervisor))
    await give(store, of_replica("other"), Notice(time.time(), 0.5))
    await give(store, of_replica("r-0"), Notice(time.time() - 9.0, 10.5))
    await until(lambda: _is_withdrawn(store), 4.0)
    with pytest.raises(aiohttp.ClientError):
        await under_way


async def test_an_engine_that_still_starts_has_nothing_to_wait_for(rig: Rig) -> None:
    unhealthy = engine("--fault", json.dumps({"kind": "unhealthy"}))
    supervisor = await rig.start(replica(unhealthy), MemoryStateStore())
    await until(lambda: supervisor.engine_pid != 0)
    async with asyncio.timeout(5.0):
        assert await supervisor.drain(60.0)


async def test_a_draining_replica_whose_engine_dies_is_not_restarted(rig: Rig) -> None:
    store = MemoryStateStore()
    supervisor = await rig.start(replica(), store)
    await supervisor.until_ready()
    draining = asyncio.create_task(supervisor.drain(20.0))
    os.kill(supervisor.engine_pid, signal.SIGKILL)
    assert await draining
    await until(lambda: supervisor.last_exit is not None)
    assert (supervisor.restarts, supervisor.is_ready) == (0, False)


async def test_without_its_store_a_replica_goes_on_and_registers_again_when_it_is_back(rig: Rig) -> None:
    server = EmbeddedRedis()
    await server.start()
    store = open_state_store(server.url)
    try:
        supervisor = await rig.start(replica(), store)
        await supervisor.until_ready()
        await until(lambda: supervisor.is_in_store)
        os.kill(server.pid, signal.SIGSTOP)
        await until(lambda: not supervisor.is_in_store)
        assert await complete(supervisor.url, 3) == 3
        assert supervisor.is_ready
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: supervisor.is_in_store)
        await until(lambda: server.restarts == 1 and supervisor.is_in_store)
        assert supervisor.restarts == 0
        await supervisor.stop()
    finally:
        await store.close()
        await server.stop()


async def test_a_replica_starts_without_a_store(rig: Rig) -> None:
    supervisor = await rig.start(replica(), open_state_store("unix:///nowhere/redis.sock"))
    await supervisor.until_ready()
    assert not supervisor.is_in_store


async def test_cancelling_run_ends_the_engine(tmp_path: Path) -> None:
    store = MemoryStateStore()
    supervisor = Supervisor(replica(), store, patience=QUICK, log_folder=tmp_path)
    running = asyncio.create_task(supervisor.run())
    await supervisor.until_ready()
    pid = supervisor.engine_pid
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_running(pid)
    assert await store.scan(REPLICAS) == {}


async def test_stopping_while_it_starts_leaves_nothing(rig: Rig) -> None:
    spec = engine(argv=(sys.executable, "-c", "import time; time.sleep(600)"))
    supervisor = await rig.start(replica(spec), MemoryStateStore())
    await until(lambda: supervisor.engine_pid > 0)
    pid = supervisor.engine_pid
    await supervisor.stop()
    assert not is_running(pid)


async def test_the_end_of_a_process_behind_the_server_restarts_the_engine(rig: Rig) -> None:
    """As when the process that computes is killed, and the one that answers does not notice."""
    script = (
        "import os, subprocess, sys; subprocess.Popen(['sleep', '600']); os.execv(sys.argv[1], sys.argv[1:])"
    )
    supervisor = await rig.start(
        replica(engine(argv=(sys.executable, "-c", script, *SIMULATED, *SERVED))), MemoryStateStore()
    )
    await supervisor.until_ready()
    core = next(p for p in psutil.Process(supervisor.engine_pid).children() if p.name() == "sleep")
    core.kill()
    await until(lambda: supervisor.last_exit is not None, within_s=1.0 + QUICK.stop_grace_s)
    assert supervisor.last_exit is not None
    assert supervisor.last_exit.text == "its process sleep ended"
    await until(lambda: supervisor.is_ready)


ALONE = """
import asyncio, sys
from replicas.supervisor import Supervisor
from state_store.memory import MemoryStateStore
from tests.replicas.test_supervisor import QUICK, replica
async def main():
    supervisor = Supervisor(replica(), MemoryStateStore(), patience=QUICK)
    running = asyncio.create_task(supervisor.run())
    await supervisor.until_ready()
    print(supervisor.engine_pid, flush=True)
    await running
asyncio.run(main())
"""


async def test_sigkill_of_the_supervisor_leaves_no_process() -> None:
    process = subprocess.Popen(  # noqa: ASYNC220 - the kill is meant to hit it
        [sys.executable, "-c", ALONE], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        engine_pid = int(await asyncio.to_thread(process.stdout.readline))
        family = [p.pid for p in psutil.Process(process.pid).children(recursive=True)]
        assert engine_pid in family
        process.kill()
        await asyncio.to_thread(process.wait)
        await until(lambda: not any(is_running(pid) for pid in family))
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
