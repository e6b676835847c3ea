"""A whole zone is cut off, with half of the replicas in it."""

from loadtests.drill_acts import cut_ways, mend_ways
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

TWO_ZONES = Plan(replicas=4, has_ways=True, has_small_tier=False, more_config=QUICK_HEALTH)
ONE_ZONE = Plan(replicas=4, zones="a", has_ways=True, has_small_tier=False, more_config=QUICK_HEALTH)

DRILL = Drill(
    name="zone-lost",
    about="Zone a is cut off, with every replica in it; then it can be reached again.",
    protection="replicas in a second zone (zone), which can take the load of both",
    setup=Setup(TWO_ZONES, cut_ways(0, 2), mend_ways(0, 2)),
    unprotected=Setup(ONE_ZONE, cut_ways(0, 1, 2, 3), mend_ways(0, 1, 2, 3)),
    checks=(
        whole(0.99),
        in_time(0.95),
        longest_gap(2.5),
        no_token_lost_or_repeated(),
        no_silent_end(),
        at_rest(),
    ),
    by_hand="cut one zone off (a network policy that denies it, cordon its nodes and delete their pods)",
)
