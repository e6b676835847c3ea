"""The policy behind Serve's own interface: its context, its wrapper, its serialization."""

import warnings
from typing import Any

import pytest

from replicas.autoscaling.load import LoadRecord, combined, from_stats, to_stats
from replicas.autoscaling.policy import Load, ScalingSpec

with warnings.catch_warnings():
    # Serve's own models use what pydantic has deprecated.
    warnings.simplefilter("ignore")
    from ray.serve._private.autoscaling_state import _resolve_policy_callable
    from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
    from ray.serve.autoscaling_policy import _apply_autoscaling_config
    from ray.serve.config import AutoscalingConfig, AutoscalingContext

    from deploy.serve_scaling import autoscaling_config

SPEC = ScalingSpec(min=1, max=16)
TIER = DeploymentID("chat.primary", "graceway")


class Controller:
    """What Serve's controller does with a policy, second by second, clock apart."""

    def __init__(self, config: AutoscalingConfig, target: int) -> None:
        self.config = config
        self.policy = _apply_autoscaling_config(_resolve_policy_callable(config.policy))
        self.target, self.now, self.state = target, 1_000_000.0, {}

    def run(self, seconds: int, *reports: dict[str, float]) -> list[int]:
        changes = [self.target]
        for _ in range(seconds):
            self.now += 1.0
            self.target, self.state = self.policy(self.context(reports))
            if self.target != changes[-1]:
                changes.append(self.target)
        return changes

    def context(self, reports: tuple[dict[str, float], ...]) -> AutoscalingContext:
        replicas = [ReplicaID(f"r{n}", TIER) for n in range(len(reports))]
        raw: dict[str, dict[ReplicaID, list[TimeStampedValue]]] = {}
        for replica, stats in zip(replicas, reports, strict=True):
            for name, value in stats.items():
                at = self.now + value if name == "as_of" else value
                points = [TimeStampedValue(self.now - 9, -1.0), TimeStampedValue(self.now, at)]
                raw.setdefault(name, {})[replica] = points
        return AutoscalingContext(
            deployment_id=TIER,
            deployment_name=TIER.name,
            app_name=TIER.app_name,
            current_num_replicas=self.target,
            target_num_replicas=self.target,
            running_replicas=replicas,
            total_num_requests=0.0,
            total_queued_requests=0.0,
            aggregated_metrics=lambda: {},
            raw_metrics=lambda: raw,
            capacity_adjusted_min_replicas=self.config.min_replicas,
            capacity_adjusted_max_replicas=self.config.max_replicas,
            policy_state=self.state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=self.now,
            config=self.config,
        )


def load(slots: float, age_s: float = 0.0, **more: Any) -> dict[str, float]:
    """A report of a tier that needs so many slots, as old as said at the time it is read."""
    return to_stats(Load(-age_s, int(slots), arrivals_per_s=slots / 4, service_s=4.0, **more))


@pytest.fixture
def controller() -> Controller:
    return Controller(autoscaling_config(SPEC, slots=8, cold_start_s=30.0), target=2)


def test_a_step_goes_through_serve_in_one_decision(controller: Controller) -> None:
    assert controller.run(60, load(12), load(12)) == [2]
    assert controller.run(6, load(48), load(48)) == [2, 8]


def test_what_the_policy_remembers_survives_between_calls(controller: Controller) -> None:
    controller.run(60, load(12))
    controller.run(60, load(48))
    assert controller.run(209, load(5)) == [8]
    assert controller.run(120, load(5))[-1] == 1


def test_no_report_and_an_old_report_hold(controller: Controller) -> None:
    controller.run(60, load(12))
    assert controller.run(600) == [2]
    assert controller.run(600, load(48, age_s=60)) == [2]
    assert "hold" in controller.state["reason"]


def test_the_newest_report_counts(controller: Controller) -> None:
    assert controller.run(6, load(90, age_s=10), load(12), load(90, age_s=14)) == [2]


def test_a_report_without_a_load_is_passed_over(controller: Controller) -> None:
    assert controller.run(60, {"something": 1.0}, load(12)) == [2]


def test_serves_bounds_hold() -> None:
    controller = Controller(autoscaling_config(ScalingSpec(min=2, max=3, standbys=1), 8, 30.0), target=3)
    assert (controller.config.min_replicas, controller.config.max_replicas) == (3, 4)
    assert controller.run(30, load(500)) == [3, 4]


def test_the_config_survives_serves_serialization() -> None:
    config = autoscaling_config(SPEC, slots=8, cold_start_s=30.0)
    again = AutoscalingConfig(**config.model_dump())
    assert Controller(again, 2).run(6, load(48)) == [2, 8]


def test_a_load_survives_its_numbers() -> None:
    known = Load(5.0, 3, 2, 1.5, 4.0, 0.3, 0.9)
    assert from_stats(to_stats(known)) == known
    unknown = Load(5.0, 3)
    assert from_stats(to_stats(unknown)) == unknown
    assert all(type(value) is float for value in to_stats(known).values())
    assert from_stats({"as_of": 1.0}) is None


def test_loads_of_several_gateways_add_up() -> None:
    def record(gateway: str, arrivals_per_s: float, service_s: float, as_of: float) -> LoadRecord:
        return LoadRecord(
            gateway, "chat", "primary", 4, 1, arrivals_per_s, service_s, arrivals_per_s / 10, 0.5, as_of
        )

    assert combined([]) is None
    both = combined([record("a", 3.0, 4.0, 10.0), record("b", 1.0, 8.0, 12.0)])
    assert both == Load(10.0, 8, 2, 4.0, 5.0, 0.3, 0.5)
    assert combined([record("a", 3.0, 0.0, 10.0)]) == Load(10.0, 4, 1, 3.0, None, 0.3, 0.5)
