"""The gateways are replaced under load, one after the other, as an upgrade does it."""

from loadtests.drill_acts import replace_gateways, upgrade_gateways
from loadtests.drill_checks import at_rest, in_time, no_silent_end, no_token_lost_or_repeated, whole
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

PLAN = Plan(gateways=2, has_store=True, more_config=QUICK_HEALTH)

DRILL = Drill(
    name="gateway-upgraded",
    about="Two gateways on one Redis are replaced one after the other: each finishes what it has, ends and starts anew.",
    protection="draining: a gateway that is told to end takes nothing new and finishes what it has",
    setup=Setup(PLAN, upgrade_gateways),
    unprotected=Setup(PLAN, replace_gateways),
    checks=(whole(), in_time(), no_token_lost_or_repeated(), no_silent_end(), at_rest()),
    by_hand="replace every gateway, one by one (kubectl rollout restart …)",
    duration_s=22.0,
)
