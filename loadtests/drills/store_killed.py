"""The shared state store dies, and comes back empty."""

from loadtests.drill_acts import kill_store, start_store
from loadtests.drill_checks import at_rest, in_time, store_is_back, store_trouble_shows, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

DRILL = Drill(
    name="store-killed",
    about="Redis gets SIGKILL under load, and starts again, empty.",
    protection="a guarded store: requests go on with what the gateway knows itself",
    setup=Setup(Plan(has_store=True, more_config=QUICK_HEALTH), kill_store, start_store),
    unprotected=Setup(Plan("naive", has_store=True), kill_store, start_store),
    checks=(whole(), in_time(), store_trouble_shows(), store_is_back(), at_rest()),
    by_hand="kill Redis (docker kill …, kubectl delete pod --force …)",
    duration_s=20.0,
)
