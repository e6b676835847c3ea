"""The shared state store is full: it answers what it knows, and takes nothing new."""

from loadtests.drill_acts import fill_store, make_room_in_store
from loadtests.drill_checks import at_rest, in_time, local_turns_show, store_is_back, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

DRILL = Drill(
    name="store-full",
    about="Redis has no memory left and may evict nothing: it refuses every write.",
    protection="a guarded store: turns are kept by their gateway, and say so, until there is room again",
    setup=Setup(Plan(has_store=True, more_config=QUICK_HEALTH), fill_store, make_room_in_store),
    unprotected=Setup(Plan("naive", has_store=True), fill_store, make_room_in_store),
    checks=(whole(), in_time(), local_turns_show(), store_is_back(), at_rest()),
    by_hand="leave Redis no room (redis-cli CONFIG SET maxmemory-policy noeviction, CONFIG SET maxmemory 1)",
    duration_s=20.0,
)
