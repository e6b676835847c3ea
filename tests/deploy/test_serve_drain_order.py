"""Which replica Serve's own scheduler ends, with and without what is known of a tier."""

import warnings

import pytest

from replicas.autoscaling.drain_order import Member

with warnings.catch_warnings():
    # Serve's own models use what pydantic has deprecated.
    warnings.simplefilter("ignore")
    from ray.serve._private.common import DeploymentID, ReplicaID
    from ray.serve._private.deployment_scheduler import DeploymentDownscaleRequest, DeploymentScheduler
    from ray.serve._private.test_utils import MockClusterNodeInfoCache

    from deploy import serve_drain_order
    from deploy.serve_drain_order import cheapest, heed

TIER = DeploymentID("chat.primary", "graceway")
A, B, C, D = (ReplicaID(name, TIER) for name in ("a", "b", "c", "d"))


def members(**bound: int) -> tuple[Member, ...]:
    return tuple(Member(f"primary-{name}", "ready", count) for name, count in bound.items())


@pytest.mark.parametrize(
    ("chosen", "known", "going"),
    [
        ({C}, members(a=0, b=2, c=1), {A}),
        ({B, C}, members(a=0, b=2, c=1), {A, C}),
        # Who does not run yet has nothing to lose.
        ({C, D}, members(a=0, b=2, c=1), {A, D}),
        ({C}, members(a=1, b=1, c=1), {C}),
        ({C}, (), {C}),
        ({C}, members(a=0, b=0), {C}),
        ({C}, (Member("primary-b", "down"), *members(a=1, c=1)), {B}),
    ],
)
def test_the_cheapest_of_those_that_run_goes(
    chosen: set[ReplicaID], known: tuple[Member, ...], going: set[ReplicaID]
) -> None:
    assert cheapest(chosen, [A, B, C], known) == going


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> DeploymentScheduler:
    """Serve's own, with three replicas on one node, the last one the newest."""
    monkeypatch.setattr(serve_drain_order, "_looks", {})
    monkeypatch.setattr(
        DeploymentScheduler, "_get_replicas_to_stop", DeploymentScheduler._get_replicas_to_stop
    )
    cache = MockClusterNodeInfoCache()
    cache.add_node("node", {})
    found = DeploymentScheduler(cache, head_node_id="node", create_placement_group_fn=None)
    found.on_deployment_created(TIER, None)
    for replica in (A, B, C):
        found.on_replica_running(replica, "node")
    return found


def ended(scheduler: DeploymentScheduler) -> set[ReplicaID]:
    found = scheduler.schedule({}, {TIER: DeploymentDownscaleRequest(TIER, 1)})
    return set(found[TIER])


def test_serves_scheduler_ends_the_one_with_fewest_sessions(scheduler: DeploymentScheduler) -> None:
    assert ended(scheduler) == {C}
    heed("chat.primary", lambda: members(a=3, b=1, c=2))
    assert ended(scheduler) == {B}
    heed("chat.primary", lambda: members(a=0, b=1, c=2))
    assert ended(scheduler) == {A}


def test_other_deployments_stay_serves_own_matter(scheduler: DeploymentScheduler) -> None:
    heed("chat.other", lambda: members(a=0, b=1, c=2))
    assert ended(scheduler) == {C}
