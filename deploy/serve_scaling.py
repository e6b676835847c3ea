"""The scaling policy as Ray Serve runs it: in the controller, once a control loop, one instance a deployment.

Requests bypass Serve's handles, so Serve's own counts are zero and not looked at. Every replica of a tier reports the
whole tier's load through `record_autoscaling_stats` (`to_stats`), and the newest report counts. A tier that has no
replica has nobody to report: then the policy goes by what is in the store. From there it also knows whose loss costs
least when a tier shrinks.
"""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from deploy.serve_drain_order import heed
from replicas.autoscaling.drain_order import Member, members_in
from replicas.autoscaling.load import from_stats, load_in
from replicas.autoscaling.policy import Fleet, Load, ScalingSpec, ScalingState, decide
from replicas.autoscaling.rotation import KEPT_S, ROTATIONS, RotationRecord
from state_store.open import open_state_store
from state_store.protocol import StateStoreUnavailable

_STATE = "graceway"
_PATIENCE_S = 1.0
_READ_EVERY_S = 1.0
COLD_START_STAT = "cold_start_s"
"""Reported beside the load once it is measured."""


@dataclass(frozen=True, slots=True)
class LoadSource:
    """Where a tier's load is found."""

    store_url: str
    model: str
    tier: str


class StoredTier:
    """What the store has of a tier, read on a thread of its own: Serve's control loop waits for no store."""

    def __init__(self, source: LoadSource) -> None:
        self._source = source
        self._thread: threading.Thread | None = None
        self.load: Load | None = None
        self.in_rotation: int | None = None
        """Where others stand by: how many are to take requests, which the store is told."""
        self.members: tuple[Member, ...] = ()

    def begin(self) -> None:
        """Reads from now on."""
        if self._thread is None:
            self._thread = threading.Thread(target=lambda: asyncio.run(self._read()), daemon=True)
            self._thread.start()

    async def _read(self) -> None:
        store = open_state_store(self._source.store_url, timeout_s=_PATIENCE_S)
        model, tier = self._source.model, self._source.tier
        while True:
            found = await load_in(store, model, tier)
            self.load = self.load if found is None else found
            with suppress(StateStoreUnavailable):
                self.members = await members_in(store, model, tier, self.in_rotation)
                if (serving := self.in_rotation) is not None:
                    rotation = RotationRecord(model, tier, serving)
                    await store.put(ROTATIONS, f"{model}/{tier}", rotation.to_bytes(), ttl_s=KEPT_S)
            await asyncio.sleep(_READ_EVERY_S)


class TierScaling:
    """Serve calls an instance with its context; what it remembers travels in Serve's policy state."""

    def __init__(
        self, slots: int, cold_start_s: float, spec: Mapping[str, Any], source: Mapping[str, str] | None
    ) -> None:
        self._slots, self._cold_start_s, self._spec = slots, cold_start_s, ScalingSpec(**spec)
        self._stored = None if source is None else StoredTier(LoadSource(**source))

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        stats = newest_stats(context)
        state = context.policy_state.get(_STATE, ScalingState())
        fleet = Fleet(
            target=context.target_num_replicas,
            running=context.current_num_replicas,
            slots=self._slots,
            cold_start_s=(stats or {}).get(COLD_START_STAT, self._cold_start_s),
        )
        load = load_of(stats)
        if self._stored is not None:
            self._attend(self._stored, context.deployment_name)
            load = load if context.current_num_replicas else self._stored.load
        decision = decide(load, fleet, self._bounded(context), state, context.current_time)
        if self._stored is not None and self._spec.standbys:
            self._stored.in_rotation = max(1, decision.in_rotation)
        return decision.replicas, {_STATE: decision.state, "reason": decision.reason}

    def _attend(self, stored: StoredTier, deployment: str) -> None:
        stored.begin()
        heed(deployment, lambda: stored.members)

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


def autoscaling_config(
    spec: ScalingSpec, slots: int, cold_start_s: float, source: LoadSource | None = None
) -> AutoscalingConfig:
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
            policy_kwargs={
                "slots": slots,
                "cold_start_s": cold_start_s,
                "spec": asdict(spec),
                "source": None if source is None else asdict(source),
            },
        ),
    )
