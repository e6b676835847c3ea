"""The network to one of two replicas is slow; its tokens come late, but no slower."""

from loadtests.drill_acts import delay_way, mend_ways
from loadtests.drill_checks import at_rest, few_on_the_replica_after, in_time, no_silent_end, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

LATE = delay_way(0.6)

DRILL = Drill(
    name="replica-delayed",
    about="The way to one of two replicas takes 0.6 s longer in each direction: later than the SLO allows.",
    protection="breakers on slow calls, ejection of outliers, routing by predicted wait",
    setup=Setup(Plan(has_ways=True, more_config=QUICK_HEALTH), LATE, mend_ways()),
    unprotected=Setup(Plan("direct", has_ways=True), LATE, mend_ways()),
    checks=(whole(), in_time(0.95), few_on_the_replica_after(3.0, most=2), no_silent_end(), at_rest()),
    by_hand="delay packets to one replica beyond the tier's SLO (tc qdisc add … netem delay 600ms)",
    heal_s=12.0,
    duration_s=18.0,
)
