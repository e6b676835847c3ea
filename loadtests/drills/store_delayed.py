"""The network to the shared state store is slow."""

from loadtests.cut_proxy import Proxy
from loadtests.drill_acts import on_store_way
from loadtests.drill_checks import at_rest, in_time, store_is_back, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

LATE, MEND = on_store_way(lambda way: way.delay(0.4)), on_store_way(Proxy.mend)

DRILL = Drill(
    name="store-delayed",
    about="The way to Redis takes 0.4 s longer in each direction.",
    protection="a guarded store with a short patience and a breaker of its own",
    setup=Setup(Plan(has_store=True, has_ways=True, more_config=QUICK_HEALTH), LATE, MEND),
    unprotected=Setup(Plan("naive", has_store=True, has_ways=True), LATE, MEND),
    checks=(whole(), in_time(), store_is_back(), at_rest()),
    by_hand="delay packets to Redis (tc qdisc add … netem delay 400ms)",
    duration_s=20.0,
)
