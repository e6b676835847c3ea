"""No descendant outlives its supervisor, whoever is killed and however."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from state_store.child_process import ChildProcess

# Like an engine: children in its session, one that left it and lost its parent, all deaf to SIGTERM.
FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(name):
    with open(os.path.join(sys.argv[1], name + ".part"), "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, os.path.join(sys.argv[1], name))
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        note("orphan")
        time.sleep(600)
    note("child")
    if os.fork() == 0:
        note("grandchild")
    time.sleep(600)
note("command")
time.sleep(600)
"""
MEMBERS = ("command", "child", "grandchild", "orphan")


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], bool], within_s: float = 15.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - other processes send no events
            await asyncio.sleep(0.01)


async def family(folder: Path) -> dict[str, int]:
    await until(lambda: all((folder / name).exists() for name in MEMBERS))
    return {name: int((folder / name).read_text()) for name in MEMBERS}


@pytest.fixture
async def pids(tmp_path: Path) -> AsyncIterator[list[int]]:
    """Ends by force whatever a failed test has left."""
    started: list[int] = []
    yield started
    for pid in started:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def start_family(folder: Path, pids: list[int], grace_s: float = 0.2) -> ChildProcess:
    child = await ChildProcess.start([sys.executable, "-c", FAMILY, str(folder)], grace_s=grace_s)
    pids.extend((await family(folder)).values())
    return child


async def test_stop_ends_all_even_what_ignores_sigterm_and_left_the_session(
    tmp_path: Path, pids: list[int]
) -> None:
    child = await start_family(tmp_path, pids)
    ended = await child.stop()
    assert ended.code == -signal.SIGKILL
    assert not any(is_running(pid) for pid in (*pids, child.guard_pid))


async def test_a_stopped_family_ends_too(tmp_path: Path, pids: list[int]) -> None:
    child = await start_family(tmp_path, pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    await child.stop()
    assert not any(is_running(pid) for pid in pids)


async def test_when_the_command_dies_its_descendants_go_and_we_know_at_once(
    tmp_path: Path, pids: list[int]
) -> None:
    child = await start_family(tmp_path, pids, grace_s=1.0)
    begun = time.monotonic()
    os.kill(child.pid, signal.SIGKILL)
    assert (await child.exited()).code == -signal.SIGKILL
    assert time.monotonic() - begun < 0.5
    assert (await child.gone()).code == -signal.SIGKILL
    assert not any(is_running(pid) for pid in pids)


async def test_sigkill_of_the_guard_takes_the_command_and_its_session_with_it(
    tmp_path: Path, pids: list[int]
) -> None:
    child = await start_family(tmp_path, pids)
    os.kill(child.guard_pid, signal.SIGKILL)
    assert (await child.gone()).is_guard_lost
    members = await family(tmp_path)
    assert not any(is_running(members[name]) for name in ("command", "child", "grandchild"))


SUPERVISOR = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[3])
from state_store.child_process import ChildProcess
async def main():
    child = await ChildProcess.start([sys.executable, "-c", sys.argv[1], sys.argv[2]], grace_s=0.2)
    # A copy of the link in a process that lives on must not keep the guard waiting.
    if os.fork() == 0:
        open(os.path.join(sys.argv[2], "bystander"), "w").write(str(os.getpid()))
        import time; time.sleep(600)
    await child.exited()
asyncio.run(main())
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_no_descendant_outlives_the_supervisor(tmp_path: Path, pids: list[int], signum: int) -> None:
    root = str(Path(__file__).parents[2])
    supervisor = subprocess.Popen(  # noqa: ASYNC220 - the kill is meant to hit it, not a guard
        [sys.executable, "-c", SUPERVISOR, FAMILY, str(tmp_path), root],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    pids.append(supervisor.pid)
    members = (await family(tmp_path)).values()
    pids.extend(members)
    await until(lambda: (tmp_path / "bystander").exists() and (tmp_path / "bystander").read_text() != "")
    pids.append(int((tmp_path / "bystander").read_text()))
    supervisor.send_signal(signum)
    await asyncio.to_thread(supervisor.wait)
    await until(lambda: not any(is_running(pid) for pid in members))


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -SEGV $$", -signal.SIGSEGV), ("kill -KILL $$", -signal.SIGKILL)],
)
async def test_how_the_command_ended_is_told(script: str, code: int) -> None:
    child = await ChildProcess.start(["sh", "-c", script])
    ended = await child.gone()
    assert (ended.code, ended.is_guard_lost) == (code, False)
    assert ended.peak_rss_bytes > 0
    assert await child.stop() == ended


async def test_output_goes_to_the_log_and_a_missing_command_is_127(tmp_path: Path) -> None:
    log = tmp_path / "log"
    await (await ChildProcess.start(["sh", "-c", "echo out; echo err >&2"], log_path=log)).gone()
    ended = await (await ChildProcess.start(["/nowhere/engine"], log_path=log)).gone()
    assert ended.code == 127
    assert log.read_text().startswith("out\nerr\ncould not start /nowhere/engine: ")


async def test_the_environment_is_the_given_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = await ChildProcess.start(["/usr/bin/env"], env={"ONLY": "this"}, log_path=log)
    await child.gone()
    lines = log.read_text().splitlines()
    assert "ONLY=this" in lines
    assert not any(line.startswith(("PATH=", "HOME=")) for line in lines)
