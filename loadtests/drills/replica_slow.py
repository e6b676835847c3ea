"""One of two replicas decodes ten times slower than the other."""

from loadtests.drill_acts import switch
from loadtests.drill_checks import at_rest, few_on_the_replica_after, in_time, no_silent_end, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

SLOW, WELL = switch("slow", factor=10), switch("none")
DRILL = Drill(
    name="replica-slow",
    about="One of two replicas decodes ten times slower.",
    protection="breakers on slow calls, ejection of outliers, routing by predicted wait",
    setup=Setup(Plan(more_config=QUICK_HEALTH), SLOW, WELL),
    unprotected=Setup(Plan("direct"), SLOW, WELL),
    checks=(whole(), in_time(0.95), few_on_the_replica_after(3.0, most=2), no_silent_end(), at_rest()),
    by_hand="slow one replica down (take CPU or clock from it: docker update --cpus 0.2 …, nvidia-smi -lgc …)",
    heal_s=12.0,
    duration_s=18.0,
)
