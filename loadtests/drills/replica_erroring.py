"""One of two replicas answers 500 to everything."""

from loadtests.drill_acts import switch
from loadtests.drill_checks import at_rest, in_time, no_silent_end, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

FAULT, WELL = switch("error", status=500), switch("none")

DRILL = Drill(
    name="replica-erroring",
    about="One of two replicas answers 500 to every request.",
    protection="further attempts under one deadline (retry.max_attempts)",
    setup=Setup(Plan(more_config=QUICK_HEALTH), FAULT, WELL),
    unprotected=Setup(Plan(more_config=QUICK_HEALTH + "retry: {max_attempts: 1}\n"), FAULT, WELL),
    checks=(whole(), in_time(), no_silent_end(), at_rest()),
    by_hand="make one replica answer 5xx (put a proxy that does in its place)",
)
