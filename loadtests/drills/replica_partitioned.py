"""Between the gateway and one of two replicas nothing comes through; the replica itself goes on."""

from loadtests.drill_acts import cut_ways, mend_ways
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
    name="replica-partitioned",
    about="Between the gateway and one of two replicas nothing comes through; later all of it does, at once.",
    protection="patience learned from the replica's own tokens, resumed streams, probes",
    setup=Setup(Plan(has_ways=True, more_config=QUICK_HEALTH), cut_ways(0), mend_ways(0)),
    unprotected=Setup(Plan("direct", has_ways=True), cut_ways(0), mend_ways(0)),
    checks=(
        whole(0.99),
        in_time(0.95),
        longest_gap(2.5),
        no_token_lost_or_repeated(),
        no_silent_end(),
        at_rest(),
    ),
    by_hand="drop all packets to one replica (iptables -A OUTPUT -d … -j DROP, tc qdisc add … netem loss 100%)",
)
