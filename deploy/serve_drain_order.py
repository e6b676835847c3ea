"""Which replica Serve ends when a tier shrinks: the one with fewest bound sessions, then fewest cached prefixes.

Serve has no setting for it and ends the newest one on the node with fewest replicas. So in its controller, where the
scaling policy runs, its choice among replicas that run is put right: those that do not run yet still go first, and
where nothing is known of a tier, or Serve's own code is not what it was, the choice stays Serve's.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import wraps
from typing import Any

from replicas.autoscaling.drain_order import Member, drain_order

log = logging.getLogger("graceway.deploy")

Look = Callable[[], tuple[Member, ...]]
_looks: dict[str, Look] = {}
"""By deployment. Serve makes its scheduler where nothing can be handed in, hence a variable."""


def heed(deployment: str, look: Look) -> None:
    """Has Serve's controller, in which this runs, end that deployment's replicas in their order from now on."""
    _looks[deployment] = look
    from ray.serve._private.deployment_scheduler import DeploymentScheduler

    original = getattr(DeploymentScheduler, "_get_replicas_to_stop", None)
    if original is None or not hasattr(DeploymentScheduler, "get_node_to_compact"):
        log.warning("this Ray Serve chooses otherwise which replica goes: it stays Serve's choice")
    elif not hasattr(original, "__wrapped__"):
        DeploymentScheduler._get_replicas_to_stop = _in_order(original)


def _in_order(original: Callable[..., set[Any]]) -> Callable[..., set[Any]]:
    @wraps(original)
    def choose(scheduler: Any, deployment_id: Any, *rest: Any, **named: Any) -> set[Any]:
        chosen = original(scheduler, deployment_id, *rest, **named)
        look = _looks.get(deployment_id.name)
        if look is None or not chosen:
            return chosen
        return cheapest(chosen, scheduler._running_replicas[deployment_id], look())

    return choose


def cheapest(chosen: Collection[Any], running: Iterable[Any], members: Iterable[Member]) -> set[Any]:
    """As many replicas as were chosen: those that do not run, and of those that do the ones whose loss costs least.

    A replica's name ends in Serve's id of it. Who has not registered goes first; among equals, Serve's choice stays.
    """
    by_id = {member.replica.rsplit("-", 1)[-1]: member for member in members}
    serves_choice_first = sorted(running, key=lambda replica: replica not in chosen)
    waiting = set(chosen).difference(serves_choice_first)
    ids = [replica.unique_id for replica in serves_choice_first]
    in_order = drain_order(replace(by_id.get(id_, Member("", "down")), replica=id_) for id_ in ids)
    going = {member.replica for member in in_order[: len(chosen) - len(waiting)]}
    return waiting | {replica for replica in serves_choice_first if replica.unique_id in going}
