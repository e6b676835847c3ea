"""One of two replicas is taken away on purpose: it drains first, so nobody notices."""

from loadtests.drill_acts import (
    kill_replica,
    reload,
    restart_replica,
    stop_replica,
    until_replica_is_idle,
    write_config,
)
from loadtests.drill_checks import at_rest, in_time, no_resume, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Mix, Setup
from loadtests.fleet import Fleet, Plan

PLAN = Plan(more_config=QUICK_HEALTH)


async def _drain_and_stop(fleet: Fleet) -> None:
    write_config(fleet, PLAN, leave_out=1)
    assert await reload(fleet) == [200]
    await until_replica_is_idle(fleet)
    await stop_replica(fleet)


async def _put_back(fleet: Fleet) -> None:
    await restart_replica(fleet)
    write_config(fleet, PLAN)
    await reload(fleet)


DRILL = Drill(
    name="scale-in",
    about="One of two replicas leaves the config, finishes what it has, and is stopped; then it comes back.",
    protection="draining: what leaves gets nothing new and finishes what it has",
    setup=Setup(PLAN, _drain_and_stop, _put_back),
    unprotected=Setup(PLAN, kill_replica, restart_replica),
    checks=(whole(), in_time(), no_resume(), at_rest()),
    by_hand="scale the best tier in by one replica (kubectl scale …)",
    load=Mix(rate_per_s=6.0),
)
