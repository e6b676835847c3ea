"""The shared state store's master dies, and Sentinels put its replica in its place."""

from loadtests.drill_acts import follow_new_master, kill_store
from loadtests.drill_checks import at_rest, in_time, store_available_after, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

DRILL = Drill(
    name="store-failed-over",
    about="Redis's master gets SIGKILL; Sentinels promote its replica, which it follows when it is back.",
    protection="asking the Sentinels where the store is (state_store.url: redis+sentinel://…)",
    setup=Setup(Plan(sentinels="asked", more_config=QUICK_HEALTH), kill_store, follow_new_master),
    unprotected=Setup(Plan(sentinels="ignored", more_config=QUICK_HEALTH), kill_store, follow_new_master),
    checks=(whole(), in_time(), store_available_after(6.0, 0.5), at_rest()),
    by_hand="kill Redis's master (or redis-cli -p 26379 SENTINEL FAILOVER …)",
    duration_s=20.0,
)
