"""One of two gateways' clocks steps an hour ahead and back, while a replica fails for a moment."""

from loadtests.drill_acts import both, step_clock, switch
from loadtests.drill_checks import (
    at_rest,
    degraded_at_most,
    in_time,
    no_silent_end,
    store_is_back,
    used_again_after,
    whole,
)
from loadtests.drill_plan import QUICK_HEALTH, Drill, Mix, Setup
from loadtests.fleet import Plan

AHEAD = both(step_clock(3600.0), switch("error", status=500))
BACK = both(step_clock(0.0), switch("none"))

DRILL = Drill(
    name="clock-stepped",
    about="One of two gateways' clocks steps an hour ahead while a replica answers 500, then both are well again.",
    protection="whatever is timed is timed by a clock that never steps, and what others say is believed for a while only",
    setup=Setup(Plan(gateways=2, has_store=True, clock="steps", more_config=QUICK_HEALTH), AHEAD, BACK),
    unprotected=Setup(
        Plan(gateways=2, has_store=True, clock="steps timers", more_config=QUICK_HEALTH), AHEAD, BACK
    ),
    checks=(
        whole(),
        in_time(),
        used_again_after(6.0, least=3),
        degraded_at_most(0.09),
        no_silent_end(),
        store_is_back(),
        at_rest(),
    ),
    by_hand="step one gateway's clock while a replica fails (date -s '+1 hour')",
    load=Mix(rate_per_s=10.0),
    heal_s=9.0,
    duration_s=22.0,
)
