"""The network to the shared state store loses packets."""

from loadtests.cut_proxy import Proxy
from loadtests.drill_acts import on_store_way
from loadtests.drill_checks import at_rest, in_time, store_is_back, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

LOSSY, MEND = on_store_way(lambda way: way.lose(0.5)), on_store_way(Proxy.mend)

DRILL = Drill(
    name="store-lossy",
    about="The way to Redis loses half of all segments, and sends them again as TCP does.",
    protection="a guarded store with a short patience and a breaker of its own",
    setup=Setup(Plan(has_store=True, has_ways=True, more_config=QUICK_HEALTH), LOSSY, MEND),
    unprotected=Setup(Plan("naive", has_store=True, has_ways=True), LOSSY, MEND),
    checks=(whole(), in_time(), store_is_back(), at_rest()),
    by_hand="lose packets to Redis (tc qdisc add … netem loss 50%)",
    duration_s=20.0,
)
