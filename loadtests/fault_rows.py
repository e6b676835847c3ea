"""The rows of the fault table: what happens to one of the replicas, and what clients may notice of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from loadtests.client import Question, ask
from loadtests.fleet import MODEL, Fleet
from loadtests.trial import Act, Load, Trial, nothing

PROBE_INTERVAL_S = 5.0
OUT_WITHIN_S = 3.0
BACK_WITHIN_S = 15.0
GONE_WITHIN_S = 0.2
IN_FLIGHT_METRIC = "graceway_replica_in_flight"
BREAKER_METRIC = "graceway_breaker_open"


async def _nothing_more(fleet: Fleet) -> list[str]:
    return []


def _nothing_else(trial: Trial) -> list[str]:
    return []


@dataclass(frozen=True, slots=True)
class Row:
    """One fault. `judge` and `after` say, in words, what must hold beside the shares and was not kept."""

    name: str
    fault: Act
    least_in_time: float | None = 1.0
    max_gap_s: float | None = None
    heal: Act = nothing
    heal_s: float | None = None
    duration_s: float = 20.0
    leaving_share: float = 0.0
    judge: Callable[[Trial], list[str]] = _nothing_else
    after: Callable[[Fleet], Awaitable[list[str]]] = _nothing_more

    def load(self, rate_per_s: float, seed: int) -> Load:
        return Load(rate_per_s, self.duration_s, leaving_share=self.leaving_share, seed=seed)

    def misses(self, trial: Trial) -> list[str]:
        """What the trial did not keep."""
        found = list(self.judge(trial))
        if self.least_in_time is not None and trial.share_in_time < self.least_in_time:
            found.append(f"{trial.share_in_time:.1%} whole and in time, wanted {self.least_in_time:.0%}")
        if self.max_gap_s is not None and trial.max_gap_s > self.max_gap_s:
            found.append(f"a gap of {trial.max_gap_s:.2f} s, wanted at most {self.max_gap_s:g} s")
        if trial.lost or trial.repeated:
            found.append(f"{trial.lost} tokens lost, {trial.repeated} repeated")
        if silent := trial.silent_ends():
            found.append(f"{len(silent)} answers neither whole nor declared failed")
        return found


def _switch(kind: str, **details: object) -> Act:
    async def act(fleet: Fleet) -> None:
        await fleet.replicas[0].fault(kind, **details)

    return act


_heal = _switch("none")


async def _kill(fleet: Fleet) -> None:
    await fleet.replicas[0].kill()


async def _freeze(fleet: Fleet) -> None:
    fleet.replicas[0].freeze()


def _out_and_back(trial: Trial) -> list[str]:
    """A slow replica gets no traffic soon after it slowed, and gets some soon after it healed."""
    assert trial.heal_s is not None
    served = trial.served_by(0)
    late = [due for due in served if trial.fault_s + OUT_WITHIN_S < due < trial.heal_s]
    back = [due - trial.heal_s for due in served if due > trial.heal_s]
    found: list[str] = []
    if late:
        found.append(f"{len(late)} requests went to it later than {OUT_WITHIN_S:g} s after the fault")
    if not back or back[0] > BACK_WITHIN_S:
        found.append(f"back after {back[0]:.1f} s" if back else "never back")
    return found


def _quarantined(trial: Trial) -> list[str]:
    """No answer that began after two probe intervals is wrong."""
    limit_s = trial.fault_s + 2 * PROBE_INTERVAL_S
    late = [record for record in trial.wrong() if trial.due_s(record) > limit_s]
    return [f"{len(late)} wrong answers later than two probe intervals"] if late else []


def _no_wrong_answer(trial: Trial) -> list[str]:
    return [f"{len(trial.wrong())} wrong answers"] if trial.wrong() else []


async def _all_leave(fleet: Fleet) -> list[str]:
    """Eight clients hang up after five tokens; nothing may still run for them `GONE_WITHIN_S` later."""
    now = asyncio.get_running_loop().time()
    questions = [
        Question(({"role": "user", "content": f"leaving {number}"},), 500, leaves_after_tokens=5)
        for number in range(8)
    ]
    await asyncio.gather(*(ask(fleet.urls[0], MODEL, question, now) for question in questions))
    await asyncio.sleep(GONE_WITHIN_S)
    stats = [await engine.stats() for engine in fleet.engines() if engine.is_running]
    running = sum(one["running"] + one["waiting"] for one in stats)
    found = [f"{running} still running {GONE_WITHIN_S:g} s after all had left"] if running else []
    if not any(one["aborted"] for one in stats):
        found.append("no replica saw a client leave")
    if counted := sum(await front_metric(fleet, IN_FLIGHT_METRIC)):
        found.append(f"the gateway still counts {counted:g} in flight")
    return found


async def _no_open_breaker(fleet: Fleet) -> list[str]:
    opened = sum(await front_metric(fleet, BREAKER_METRIC))
    return ["a breaker is open"] if opened else []


async def front_metric(fleet: Fleet, name: str) -> list[float]:
    """A metric's values at the front, over all labels; none where the front has no such metric."""
    async with aiohttp.ClientSession() as http, http.get(f"{fleet.urls[0]}/metrics") as response:
        lines = (await response.text()).splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} "))]


ROWS = (
    Row("none", nothing),
    Row("sigkill", _kill, max_gap_s=1.0),
    Row("cut", _switch("cut", after_tokens=20)),
    Row("sigstop", _freeze, 0.99, max_gap_s=1.0),
    Row(
        "slow",
        _switch("slow", factor=10),
        0.98,
        heal=_heal,
        heal_s=13.0,
        duration_s=32.0,
        judge=_out_and_back,
    ),
    Row("all-500", _switch("error", status=500)),
    Row("half-500", _switch("error", status=500, share=0.5)),
    Row("all-503", _switch("error", status=503), after=_no_open_breaker),
    Row("wrong", _switch("wrong"), None, judge=_quarantined),
    Row("hang-up", nothing, leaving_share=0.5, after=_all_leave),
    Row("silent", _switch("hang", after_tokens=20), 0.99, max_gap_s=1.0),
    Row("garbage", _switch("garbage"), None, judge=_quarantined),
    Row("malformed", _switch("malformed", after_tokens=10), judge=_no_wrong_answer),
    Row("error-event", _switch("error_event", after_tokens=10)),
    Row("role-then-error", _switch("role_then_error")),
    Row("no-tokens", _switch("no_tokens")),
    Row("unhealthy", _switch("unhealthy")),
    Row("slow-health", _switch("slow_health", seconds=10)),
)
