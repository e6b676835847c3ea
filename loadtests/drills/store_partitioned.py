"""Between the gateway and the shared state store nothing comes through."""

from loadtests.cut_proxy import Proxy
from loadtests.drill_acts import on_store_way
from loadtests.drill_checks import at_rest, in_time, store_is_back, store_trouble_shows, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

CUT, MEND = on_store_way(Proxy.cut), on_store_way(Proxy.mend)

DRILL = Drill(
    name="store-partitioned",
    about="Between the gateway and Redis nothing comes through; later all of it does, at once.",
    protection="a guarded store with a short patience and a breaker of its own",
    setup=Setup(Plan(has_store=True, has_ways=True, more_config=QUICK_HEALTH), CUT, MEND),
    unprotected=Setup(Plan("naive", has_store=True, has_ways=True), CUT, MEND),
    checks=(whole(), in_time(), store_trouble_shows(), store_is_back(), at_rest()),
    by_hand="drop all packets to Redis (iptables -A OUTPUT -p tcp --dport 6379 -j DROP)",
    duration_s=20.0,
)
