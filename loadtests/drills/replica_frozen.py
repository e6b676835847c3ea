"""One of two replicas stops in mid-sentence and keeps its connections open."""

from loadtests.drill_acts import freeze_replica, thaw_replica
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

DRILL = Drill(
    name="replica-frozen",
    about="One of two replicas gets SIGSTOP under load: its connections stay open and nothing comes.",
    protection="patience learned from the replica's own tokens, resumed streams, probes",
    setup=Setup(Plan(more_config=QUICK_HEALTH), freeze_replica, thaw_replica),
    unprotected=Setup(Plan("direct"), freeze_replica, thaw_replica),
    checks=(
        whole(0.99),
        in_time(0.95),
        longest_gap(2.5),
        no_token_lost_or_repeated(),
        no_silent_end(),
        at_rest(),
    ),
    by_hand="freeze one replica of the best tier (docker pause …, kill -STOP …)",
)
