"""Where Serve's own scheduler starts replicas."""

import warnings

import pytest

with warnings.catch_warnings():
    # Serve's own models use what pydantic has deprecated.
    warnings.simplefilter("ignore")
    from ray.serve._private.common import DeploymentID, ReplicaID
    from ray.serve._private.config import ReplicaConfig
    from ray.serve._private.deployment_scheduler import (
        DeploymentScheduler,
        ReplicaSchedulingRequest,
        SpreadDeploymentSchedulingPolicy,
    )
    from ray.serve._private.test_utils import MockActorClass, MockClusterNodeInfoCache

    from deploy import serve_placement

TIER, OTHER = DeploymentID("chat.primary", "graceway"), DeploymentID("chat.small", "graceway")


@pytest.mark.parametrize(
    ("nodes", "zones", "of_kind", "of_all", "chosen"),
    [
        (["a", "b"], {"a": "", "b": ""}, {"a": 1}, {"a": 1}, "b"),
        # Another zone before another node.
        (["a2", "b1"], {"a1": "a", "a2": "a", "b1": "b"}, {"a1": 1}, {"a1": 1, "b1": 3}, "b1"),
        (["a1", "a2"], {"a1": "a", "a2": "a", "b1": "b"}, {"a1": 1}, {"a1": 1}, "a2"),
        # Among equals the one with fewest of anything.
        (["a", "b"], {"a": "", "b": ""}, {}, {"a": 2, "b": 1}, "b"),
        ([], {"a": ""}, {}, {}, None),
    ],
)
def test_one_more_goes_where_fewest_are(
    nodes: list[str],
    zones: dict[str, str],
    of_kind: dict[str, int],
    of_all: dict[str, int],
    chosen: str | None,
) -> None:
    assert serve_placement.emptiest(nodes, zones, of_kind, of_all) == chosen


def id_of(name: str) -> str:
    """As Ray gives its nodes."""
    return name.encode().ljust(28).hex()


class Cluster:
    """Serve's scheduler over nodes that are only said to be there."""

    def __init__(self, **nodes: dict[str, float]) -> None:
        self.cache = MockClusterNodeInfoCache()
        for name, resources in nodes.items():
            labels = {serve_placement.ZONE: name[0]}
            self.cache.add_node(id_of(name), resources, labels)
        self.scheduler = DeploymentScheduler(
            self.cache, head_node_id=id_of("head"), create_placement_group_fn=None
        )
        for deployment in (TIER, OTHER):
            self.scheduler.on_deployment_created(deployment, SpreadDeploymentSchedulingPolicy())
            self.scheduler.on_deployment_deployed(
                deployment, ReplicaConfig.create(lambda: None, ray_actor_options={"num_cpus": 0.001})
            )
        self.count = 0

    def start(self, deployment: DeploymentID = TIER, **resources: float) -> str | None:
        """The node that is asked for."""
        self.count += 1
        replica = ReplicaID(f"r{self.count}", deployment)
        asked: list[str | None] = []

        def scheduled(actor: object, placement_group: object) -> None:
            strategy = actor._options["scheduling_strategy"]  # type: ignore[attr-defined]
            node_id = None if strategy == "SPREAD" else strategy.node_id
            asked.append(node_id and bytes.fromhex(node_id).decode().strip())
            assert strategy == "SPREAD" or strategy.soft

        request = ReplicaSchedulingRequest(
            replica_id=replica,
            actor_def=MockActorClass(),
            actor_resources=resources,
            actor_options={},
            actor_init_args=(),
            on_scheduled=scheduled,
        )
        self.scheduler.schedule({deployment: [request]}, {})
        [node] = asked
        return node


@pytest.fixture(autouse=True)
def placing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeploymentScheduler, "_schedule_replica", DeploymentScheduler._schedule_replica)
    serve_placement.begin()


def test_replicas_are_spread_over_zones_and_then_nodes() -> None:
    cluster = Cluster(a1={"CPU": 2}, a2={"CPU": 2}, b1={"CPU": 2})
    first = [cluster.start() for _ in range(2)]
    assert {node[0] for node in first if node} == {"a", "b"}
    assert set(first) | {cluster.start()} == {"a1", "a2", "b1"}


def test_those_that_are_gone_or_can_not_have_it_are_passed_over() -> None:
    cluster = Cluster(a1={"CPU": 2}, b1={"CPU": 2, "GPU": 1}, c1={"CPU": 2})
    assert cluster.start(GPU=1) == "b1"
    cluster.cache.draining_nodes[id_of("a1")] = 0
    assert cluster.start() == "c1"
    assert cluster.start(GPU=4) is None


def test_a_node_that_will_be_taken_away_is_the_last_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_placement, "leaving", lambda: {id_of("a1"), id_of("b1")})
    cluster = Cluster(a1={"CPU": 2}, a2={"CPU": 2}, b1={"CPU": 2, "GPU": 1})
    assert [cluster.start() for _ in range(2)] == ["a2", "a2"]
    assert cluster.start(GPU=1) == "b1"


def test_a_head_without_cpus_is_left_alone() -> None:
    cluster = Cluster(head={}, work={"CPU": 2})
    assert [cluster.start(CPU=0.001) for _ in range(3)] == ["work"] * 3
    assert Cluster(head={}).start(CPU=0.001) is None
