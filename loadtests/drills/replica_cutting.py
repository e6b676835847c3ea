"""One of two replicas closes every stream after twenty tokens."""

from loadtests.drill_acts import switch
from loadtests.drill_checks import at_rest, in_time, no_silent_end, no_token_lost_or_repeated, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

FAULT, WELL = switch("cut", after_tokens=20), switch("none")

DRILL = Drill(
    name="replica-cutting",
    about="One of two replicas closes the connection after twenty tokens of each answer.",
    protection="resumed streams (retry.max_attempts)",
    setup=Setup(Plan(more_config=QUICK_HEALTH), FAULT, WELL),
    unprotected=Setup(Plan(more_config=QUICK_HEALTH + "retry: {max_attempts: 1}\n"), FAULT, WELL),
    checks=(whole(), in_time(), no_token_lost_or_repeated(), no_silent_end(), at_rest()),
    by_hand="cut one replica's connections again and again (ss -K dst …, tcpkill …)",
)
