"""The network to one of two replicas loses packets: tokens come in fits and starts."""

from loadtests.drill_acts import lose_on_way, mend_ways
from loadtests.drill_checks import (
    at_rest,
    in_time,
    no_silent_end,
    no_token_lost_or_repeated,
    whole,
)
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

LOSSY = lose_on_way(0.5)

DRILL = Drill(
    name="replica-lossy",
    about="The way to one of two replicas loses half of all segments, and sends them again as TCP does.",
    protection="patience learned from the replica's own tokens, resumed streams",
    setup=Setup(Plan(has_ways=True, more_config=QUICK_HEALTH), LOSSY, mend_ways()),
    unprotected=Setup(Plan("direct", has_ways=True), LOSSY, mend_ways()),
    checks=(
        whole(0.99),
        in_time(0.92),
        no_token_lost_or_repeated(),
        no_silent_end(),
        at_rest(),
    ),
    by_hand="lose packets to one replica (tc qdisc add … netem loss 50%)",
    heal_s=12.0,
    duration_s=18.0,
)
