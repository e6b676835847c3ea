"""One of two replicas dies under load, and comes back."""

from loadtests.drill_acts import kill_replica, restart_replica
from loadtests.drill_checks import (
    at_rest,
    in_time,
    longest_gap,
    no_silent_end,
    no_token_lost_or_repeated,
    whole,
)
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

PROTECTED = Plan(more_config=QUICK_HEALTH)
ONE_ATTEMPT = Plan(more_config=QUICK_HEALTH + "retry: {max_attempts: 1}\n")

DRILL = Drill(
    name="replica-killed",
    about="One of two replicas gets SIGKILL under load, and starts again.",
    protection="further attempts and resumed streams (retry.max_attempts)",
    setup=Setup(PROTECTED, kill_replica, restart_replica),
    unprotected=Setup(ONE_ATTEMPT, kill_replica, restart_replica),
    checks=(whole(), in_time(), longest_gap(2.0), no_token_lost_or_repeated(), no_silent_end(), at_rest()),
    by_hand="kill one replica of the best tier (docker kill …, kubectl delete pod --force …)",
)
