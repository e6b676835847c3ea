"""On which node Serve starts a replica: in the zone, and there on the node, that has fewest of its kind.

Serve asks Ray to spread replicas, which takes one node after the other, whichever kind of replica it is and whatever
zone the node is in, and has no setting for more. So Serve's controller, in which this runs, names a node each time. It
is a wish: Ray chooses another one when that node can't have it, and where Serve's own code is not what it was, Ray's
spreading is what remains. A node that will be taken away gets one only where no other can have it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any

from deploy.leaving_nodes import leaving

log = logging.getLogger("graceway.deploy")

ZONE = "ray.io/availability-zone"


def begin() -> None:
    """What Serve's controller calls by its import path before it does anything else."""
    from ray.serve._private.deployment_scheduler import DeploymentScheduler

    original = getattr(DeploymentScheduler, "_schedule_replica", None)
    if original is None:
        log.warning("this Ray Serve places replicas otherwise: where they run stays Ray's choice")
    elif not hasattr(original, "__wrapped__"):
        DeploymentScheduler._schedule_replica = _with_a_node(original)


def _with_a_node(original: Callable[..., bool]) -> Callable[..., bool]:
    @wraps(original)
    def schedule(scheduler: Any, scheduling_request: Any, *rest: Any, **named: Any) -> bool:
        is_free = not rest and named == {"default_scheduling_strategy": "SPREAD"}
        if is_free and scheduling_request.placement_group_bundles is None:
            named["target_node_id"] = _node_for(scheduler, scheduling_request)
        return original(scheduler, scheduling_request, *rest, **named)

    return schedule


def _node_for(scheduler: Any, request: Any) -> str | None:
    cache = scheduler._cluster_node_info_cache
    free = scheduler._get_available_resources_per_node()
    fitting = [node for node, has in free.items() if has.can_fit(request.requested_resources)]
    gone_soon = leaving()
    staying = [node for node in fitting if node not in gone_soon]
    zones = {node: cache.get_node_labels(node).get(ZONE, "") for node in cache.get_active_node_ids()}
    of_kind = _nodes_of(scheduler, request.replica_id.deployment_id)
    of_all: Counter[str] = Counter()
    for deployment in set(scheduler._running_replicas) | set(scheduler._launching_replicas):
        of_all += _nodes_of(scheduler, deployment)
    return emptiest(staying or fitting, zones, of_kind, of_all)


def _nodes_of(scheduler: Any, deployment: Any) -> Counter[str]:
    running = scheduler._running_replicas.get(deployment, {}).values()
    launching = scheduler._launching_replicas.get(deployment, {}).values()
    return Counter([*running, *(info.target_node_id for info in launching if info.target_node_id)])


def emptiest(
    nodes: Collection[str], zones: Mapping[str, str], of_kind: Mapping[str, int], of_all: Mapping[str, int]
) -> str | None:
    """The node for one more of a kind; None without any.

    Args:
        zones: of all nodes that are there.
        of_kind, of_all: how many of the same kind, and of any, each node has.
    """
    in_zone: Counter[str] = Counter()
    for node, zone in zones.items():
        in_zone[zone] += of_kind.get(node, 0)

    def crowd(node: str) -> tuple[int, int, int, str]:
        return in_zone[zones.get(node, "")], of_kind.get(node, 0), of_all.get(node, 0), node

    return min(nodes, key=crowd, default=None)
