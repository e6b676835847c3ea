"""Three times the capacity is asked for, most of it of little importance."""

from loadtests.drill_checks import answered_or_refused, at_rest, priority_in_time, refused_within
from loadtests.drill_plan import Drill, Mix, Setup
from loadtests.fleet import Plan

DRILL = Drill(
    name="overload",
    about="Three times the fleet's capacity is asked for, most of it sheddable.",
    protection="admission by slots, priority and deadline (slots)",
    setup=Setup(Plan(has_small_tier=False)),
    unprotected=Setup(Plan("direct")),
    checks=(priority_in_time("critical", 0.97), answered_or_refused(), refused_within(0.1), at_rest()),
    load=Mix(rate_per_s=6.0, priorities={"critical": 1.0}),
    surge=Mix(rate_per_s=42.0, session_share=0.0, priorities={"sheddable": 0.8, "standard": 0.2}),
    heal_s=11.0,
    duration_s=14.0,
)
