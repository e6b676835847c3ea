"""The whole best tier is gone; the next one answers, and says so."""

from loadtests.drill_acts import kill_primary, restart_primary
from loadtests.drill_checks import (
    at_rest,
    degraded_meanwhile,
    in_time,
    no_silent_end,
    on_top_again_within,
    whole,
)
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

DRILL = Drill(
    name="tier-forced",
    about="Every replica of the best tier is killed under load; then all of them start again.",
    protection="a lower tier (a ladder of more than one)",
    setup=Setup(Plan(more_config=QUICK_HEALTH), kill_primary, restart_primary),
    unprotected=Setup(Plan(has_small_tier=False, more_config=QUICK_HEALTH), kill_primary, restart_primary),
    checks=(
        whole(),
        in_time(0.95),
        degraded_meanwhile(0.99),
        on_top_again_within(20.0),
        no_silent_end(),
        at_rest(),
    ),
    by_hand="stop every replica of the best tier",
    duration_s=36.0,
)
