"""One of two gateways dies under load; a load balancer's clients go to the other one."""

from loadtests.drill_acts import kill_gateway, start_gateway
from loadtests.drill_checks import at_rest, no_failure_beyond
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

DRILL = Drill(
    name="gateway-killed",
    about="One of two gateways on one Redis gets SIGKILL under load, and starts again.",
    protection="a second gateway: only what was under way on the first is lost",
    setup=Setup(Plan(gateways=2, has_store=True, more_config=QUICK_HEALTH), kill_gateway, start_gateway),
    unprotected=Setup(
        Plan(gateways=1, has_store=True, more_config=QUICK_HEALTH), kill_gateway, start_gateway
    ),
    checks=(no_failure_beyond(), at_rest()),
    by_hand="kill one gateway behind your load balancer",
)
