"""The shared state store stops answering and keeps its connections open."""

from loadtests.drill_acts import freeze_store, thaw_store
from loadtests.drill_checks import at_rest, in_time, store_is_back, store_trouble_shows, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

DRILL = Drill(
    name="store-frozen",
    about="Redis gets SIGSTOP under load: connections stay open, no command is answered.",
    protection="a guarded store with a short patience and a breaker of its own",
    setup=Setup(Plan(has_store=True, more_config=QUICK_HEALTH), freeze_store, thaw_store),
    unprotected=Setup(Plan("naive", has_store=True), freeze_store, thaw_store),
    checks=(whole(), in_time(), store_trouble_shows(), store_is_back(), at_rest()),
    by_hand="freeze Redis (docker pause …, kill -STOP …, redis-cli DEBUG SLEEP 5)",
    duration_s=20.0,
)
