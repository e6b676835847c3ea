"""The shared state store's master dies for good, and Sentinels put its replica in its place."""

from loadtests.drill_acts import kill_store
from loadtests.drill_checks import at_rest, in_time, store_is_back, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

DRILL = Drill(
    name="store-failed-over",
    about="Redis's master gets SIGKILL and stays dead; Sentinels promote its replica.",
    protection="asking the Sentinels where the store is (state_store.url: redis+sentinel://…)",
    setup=Setup(Plan(sentinels="asked", more_config=QUICK_HEALTH), kill_store),
    unprotected=Setup(Plan(sentinels="ignored", more_config=QUICK_HEALTH), kill_store),
    checks=(whole(), in_time(), store_is_back(), at_rest()),
    by_hand="kill Redis's master and leave it dead (or redis-cli -p 26379 SENTINEL FAILOVER …)",
    duration_s=20.0,
)
