"""The machine of one of two replicas is gone: its connections stay open, nothing comes, and nothing is refused."""

from loadtests.drill_acts import bring_node_back, lose_node
from loadtests.drill_checks import (
    at_rest,
    in_time,
    longest_gap,
    no_silent_end,
    no_token_lost_or_repeated,
    whole,
)
from loadtests.drill_plan import QUICK_HEALTH, Drill, Setup
from loadtests.fleet import Plan

DRILL = Drill(
    name="node-lost",
    about="One of two replicas' machines loses its power: no connection is closed, none is refused; it comes back empty.",
    protection="patience learned from the replica's own tokens, resumed streams, probes",
    setup=Setup(Plan(has_ways=True, more_config=QUICK_HEALTH), lose_node, bring_node_back),
    unprotected=Setup(Plan("direct", has_ways=True), lose_node, bring_node_back),
    checks=(
        whole(0.99),
        in_time(0.95),
        longest_gap(2.5),
        no_token_lost_or_repeated(),
        no_silent_end(),
        at_rest(),
    ),
    by_hand="take one node of the best tier away (power it off, kubectl debug … ip link set down …)",
)
