"""Many clients leave in mid-stream; nothing may go on for them, and nobody is blamed."""

from loadtests.drill_checks import at_rest, in_time, no_open_breaker, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Mix, Setup
from loadtests.fleet import Plan

DRILL = Drill(
    name="clients-hang-up",
    about="Many clients ask for long answers and hang up after five tokens.",
    protection="an abandoned request is ended at its replica at once",
    setup=Setup(Plan(more_config=QUICK_HEALTH, has_small_tier=False)),
    unprotected=Setup(Plan("naive")),
    checks=(whole(), in_time(), no_open_breaker(), at_rest()),
    load=Mix(rate_per_s=5.0),
    surge=Mix(rate_per_s=12.0, tokens=1000, leaving_share=1.0),
    duration_s=14.0,
)
