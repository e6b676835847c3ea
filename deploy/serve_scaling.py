"""The scaling policy as Ray Serve runs it: in the controller, once a control loop, one instance a deployment.

Requests bypass Serve's handles, so Serve's own counts are zero and not looked at. Every replica of a tier reports the
whole tier's load through `record_autoscaling_stats` (`to_stats`), and the newest report counts.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from replicas.autoscaling.load import from_stats
from replicas.autoscaling.policy import Fleet, Load, ScalingSpec, ScalingState, decide

_STATE = "graceway"
COLD_START_STAT = "cold_start_s"
"""Reported beside the load once it is measured."""


class TierScaling:
    """Serve calls an instance with its context; what it remembers travels in Serve's policy state."""

    def __init__(self, slots: int, cold_start_s: float, spec: Mapping[str, Any]) -> None:
        self._slots, self._cold_start_s, self._spec = slots, cold_start_s, ScalingSpec(**spec)

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        stats = newest_stats(context)
        state = context.policy_state.get(_STATE, ScalingState())
        fleet = Fleet(
            target=context.target_num_replicas,
            running=context.current_num_replicas,
            slots=self._slots,
            cold_start_s=(stats or {}).get(COLD_START_STAT, self._cold_start_s),
        )
        decision = decide(load_of(stats), fleet, self._bounded(context), state, context.current_time)
        return decision.replicas, {_STATE: decision.state, "reason": decision.reason}

    def _bounded(self, context: AutoscalingContext) -> ScalingSpec:
        """Serve narrows the bounds while an application is being rolled out."""
        standbys = self._spec.standbys
        most = max(0, context.capacity_adjusted_max_replicas - standbys)
        least = max(0, context.capacity_adjusted_min_replicas - standbys)
        return replace(self._spec, min=min(least, most), max=min(self._spec.max, most))


def newest_stats(context: AutoscalingContext) -> dict[str, float] | None:
    """The last values that one replica reported, of the replica whose load is the newest; None without any."""
    by_replica: dict[Any, dict[str, float]] = {}
    for name, series in (context.raw_metrics or {}).items():
        for replica, points in series.items():
            if points:
                by_replica.setdefault(replica, {})[name] = points[-1].value
    dated = [stats for stats in by_replica.values() if "as_of" in stats]
    return max(dated, key=lambda stats: stats["as_of"], default=None)


def load_of(stats: Mapping[str, float] | None) -> Load | None:
    """The load in a report."""
    return None if stats is None else from_stats(stats)


def autoscaling_config(spec: ScalingSpec, slots: int, cold_start_s: float) -> AutoscalingConfig:
    """For a tier's deployment. Serve's own delays and factors are off: it puts them on top of any policy."""
    return AutoscalingConfig(
        min_replicas=spec.min + (spec.standbys if spec.min else 0),
        max_replicas=spec.max + spec.standbys,
        target_ongoing_requests=slots,
        upscale_delay_s=0,
        downscale_delay_s=0,
        downscale_to_zero_delay_s=0,
        policy=AutoscalingPolicy(
            policy_function=TierScaling,
            policy_kwargs={"slots": slots, "cold_start_s": cold_start_s, "spec": asdict(spec)},
        ),
    )
