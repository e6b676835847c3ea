"""How many replicas a tier should have: one pure policy, fast up and slow down.

Demand is counted in slots: requests that arrive a second × seconds each holds a slot (Little's law), or, while no
rates are known, what is in flight and queued. Not the queue alone, which during a cold start grows with time
rather than with load, and would ask for far too many replicas.

- Up, once a shortage has lasted a while: to what the long window says, or, in panic, in one step to what is needed by
  the demand seen since the shortage began. Panic is when the short window exceeds what runs by a factor, or when the
  predicted wait breaks the SLO.
- Down: to the most that was needed in the last `down_window_s`, a share at a time, never in panic and never within
  a cold start of the last way up. Up again within a cold start of the way down only in panic.
- Data that is missing or older than `stale_s` changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

_EPSILON_S = 1e-6


@dataclass(frozen=True, slots=True)
class Load:
    """What the gateways report of one tier."""

    as_of: float
    """When, in seconds on the clock that `decide` is given."""
    in_flight: int
    """Requests that hold a slot."""
    queued: int = 0
    arrivals_per_s: float | None = None
    """Requests that asked for this tier in the last seconds, those not admitted among them; None while unknown."""
    service_s: float | None = None
    """Mean seconds for which a request holds its slot; None while unknown."""
    predicted_wait_s: float = 0.0
    kv_use: float = 0.0
    """Share of the KV cache in use, 0 to 1, over the tier's replicas."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the tier has."""

    target: int
    """Replicas last asked for, warm standbys among them."""
    running: int
    slots: int
    """Of one replica; a MIG slice's, where replicas have one."""
    cold_start_s: float
    """Measured, from asking for a replica to its first answer."""


@dataclass(frozen=True, slots=True)
class ScalingSpec:
    """A tier's bounds and times. Seconds, and shares from 0 to 1."""

    min: int = 1
    """0 lets the tier go to zero."""
    max: int = 1
    standbys: int = 0
    """Replicas beyond need that are started and not in rotation, so that a loss costs no cold start."""
    utilization: float = 0.75
    """Share of the slots that demand should take up; the rest is for its fluctuation."""
    tolerance: float = 0.01
    """Demand may exceed that share by this much before a replica is added: noise is no reason."""
    turn_tolerance: float = 0.08
    """The same after a way down: to turn round takes better evidence than to go on."""
    down_margin: float = 0.04
    """A replica goes only when the others would have this much more than the demand, so that noise brings none back."""
    wait_slo_s: float = 1.0
    up_delay_s: float = 5.0
    """For which a shortage must last in panic."""
    calm_delay_s: float = 10.0
    """And for which it must last by the long window: a slow rise can wait that long, noise seldom lasts it."""
    window_s: float = 45.0
    panic_window_s: float = 6.0
    panic_factor: float = 1.5
    down_window_s: float = 210.0
    down_share: float = 0.5
    """Of what is superfluous, at most this much goes in one decision."""
    to_zero_after_s: float = 300.0
    stale_s: float = 15.0
    kv_high: float = 0.9
    """KV use above which slots are not the limit, and the need is scaled by KV use instead."""


@dataclass(frozen=True, slots=True)
class ScalingState:
    """What the policy remembers from one decision to the next."""

    samples: tuple[tuple[float, float], ...] = ()
    """(time, slots in demand), oldest first, over `window_s`."""
    needs: tuple[tuple[float, int], ...] = ()
    """(time, replicas needed) over `down_window_s`: only those that a later one does not exceed."""
    short_since: float | None = None
    """Since when more is needed than there is."""
    last_up_at: float | None = None
    last_down_at: float | None = None
    panic_until: float = 0.0
    busy_at: float | None = None
    """When there last was any demand."""
    first_at: float | None = None
    """Of the first data: what was needed before is not known, so nothing goes down for `down_window_s`."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Replicas to run, how many of them take requests, and why."""

    replicas: int
    in_rotation: int
    reason: str
    state: ScalingState


def decide(
    load: Load | None, fleet: Fleet, spec: ScalingSpec, state: ScalingState, now: float
) -> ScalingDecision:
    """The next number of replicas. Call it every second or so with the state of the decision before."""
    serving = max(0, fleet.target - spec.standbys)
    if load is None:
        return _decision(serving, "no data: hold", spec, state)
    if (age_s := now - load.as_of) > spec.stale_s:
        return _decision(serving, f"data is {age_s:.0f} s old: hold", spec, state)
    seen = _observe(load, fleet, spec, state, now)
    if is_panic := _is_panic(load, fleet, spec, seen, now):
        seen = replace(seen, panic_until=now + spec.window_s)
    needed = _needed(load, fleet, spec, seen, now)
    to_keep = max(needed, _to_keep(serving, fleet, spec, seen, now))
    seen = replace(seen, needs=_with_need(seen.needs, to_keep, now, spec.down_window_s))
    if needed > serving or is_panic:
        return _up(load, needed, fleet, spec, seen, now, is_panic)
    return _down(serving, fleet, spec, replace(seen, short_since=None), now)


def _observe(load: Load, fleet: Fleet, spec: ScalingSpec, state: ScalingState, now: float) -> ScalingState:
    demand = _demand(load, fleet, spec)
    samples = tuple(s for s in state.samples if s[0] > now - spec.window_s)
    is_busy = demand > 0 or load.in_flight > 0 or load.queued > 0 or state.busy_at is None
    first_at = now if state.first_at is None else state.first_at
    busy_at = now if is_busy else state.busy_at
    return replace(state, samples=(*samples, (now, demand)), busy_at=busy_at, first_at=first_at)


def _demand(load: Load, fleet: Fleet, spec: ScalingSpec) -> float:
    """Slots that the traffic needs."""
    if load.arrivals_per_s is not None and load.service_s is not None:
        slots = load.arrivals_per_s * load.service_s
    else:
        slots = float(load.in_flight + load.queued)
    if load.kv_use > spec.kv_high and fleet.running:
        # Long contexts fill the cache before the slots: then the cache is what demand is measured in.
        slots = max(slots, load.kv_use / spec.kv_high * fleet.running * fleet.slots * spec.utilization)
    return slots


def _mean(samples: Sequence[tuple[float, float]], since: float) -> float:
    values = [value for at, value in samples if at > since]
    return sum(values) / len(values) if values else 0.0


def _replicas_for(slots: float, fleet: Fleet, spec: ScalingSpec) -> int:
    return ceil(slots / (fleet.slots * spec.utilization) - 1e-9)


def _is_panic(load: Load, fleet: Fleet, spec: ScalingSpec, seen: ScalingState, now: float) -> bool:
    """Whether waiting for the long window would break the SLO."""
    if fleet.target - spec.standbys >= spec.max:
        return False
    expected = (max(fleet.running, fleet.target) - spec.standbys) * fleet.slots * spec.utilization
    is_short = _mean(seen.samples, now - spec.panic_window_s) > spec.panic_factor * expected
    is_slow = load.queued > 0 and load.predicted_wait_s > spec.wait_slo_s
    return is_short or (is_slow and fleet.running >= fleet.target)


def _needed(load: Load, fleet: Fleet, spec: ScalingSpec, seen: ScalingState, now: float) -> int:
    """Replicas in rotation by the long window, within the tier's bounds."""
    least = 1 if load.queued > 0 or load.in_flight > 0 else 0
    slots = _mean(seen.samples, now - spec.window_s)
    serving = fleet.target - spec.standbys
    by_demand = _replicas_for(slots, fleet, spec)
    tolerance = spec.turn_tolerance if _went_down_last(seen) else spec.tolerance
    if by_demand > serving and _replicas_for(slots / (1 + tolerance), fleet, spec) <= serving:
        by_demand = serving
    return _bounded(max(by_demand, least), spec)


def _went_down_last(seen: ScalingState) -> bool:
    return seen.last_down_at is not None and seen.last_down_at > (seen.last_up_at or 0.0)


def _to_keep(serving: int, fleet: Fleet, spec: ScalingSpec, seen: ScalingState, now: float) -> int:
    """Replicas below which the tier should not go; never more than there are."""
    slots = _mean(seen.samples, now - spec.window_s) * (1 + spec.down_margin)
    return min(serving, _bounded(_replicas_for(slots, fleet, spec), spec))


def _bounded(replicas: int, spec: ScalingSpec) -> int:
    return min(max(replicas, spec.min), spec.max)


def _with_need(
    needs: Sequence[tuple[float, int]], need: int, now: float, window_s: float
) -> tuple[tuple[float, int], ...]:
    """Adds the need and drops what it makes irrelevant, so that the first is the most within the window."""
    return (*((at, n) for at, n in needs if n > need and at > now - window_s), (now, need))


def _up(
    load: Load, needed: int, fleet: Fleet, spec: ScalingSpec, seen: ScalingState, now: float, is_panic: bool
) -> ScalingDecision:
    serving = max(0, fleet.target - spec.standbys)
    since = now if seen.short_since is None else seen.short_since
    seen = replace(seen, short_since=since)
    if is_panic:
        by_new_demand = _replicas_for(_mean(seen.samples, since - _EPSILON_S), fleet, spec)
        needed = max(needed, _bounded(by_new_demand, spec))
    if is_panic and needed <= serving and fleet.running >= fleet.target:
        # Everything runs and requests still wait too long: the rates are wrong, the wait isn't.
        needed = _bounded(serving + 1, spec)
    if needed <= serving:
        return _decision(serving, "what is needed is already starting", spec, seen)
    if serving > 0 and now - since < (spec.up_delay_s if is_panic else spec.calm_delay_s):
        return _decision(serving, f"{needed} needed for {now - since:.1f} s: not yet", spec, seen)
    if not is_panic and serving > 0 and _is_within(seen.last_down_at, fleet.cold_start_s, now):
        return _decision(serving, f"{needed} needed, but just went down: hold", spec, seen)
    seen = replace(seen, needs=_with_need(seen.needs, needed, now, spec.down_window_s))
    state = replace(seen, short_since=None, last_up_at=now)
    return _decision(needed, f"{needed} needed{' at once' if is_panic else ''}", spec, state)


def _down(serving: int, fleet: Fleet, spec: ScalingSpec, seen: ScalingState, now: float) -> ScalingDecision:
    most = seen.needs[0][1]
    if most >= serving:
        return _decision(serving, "enough", spec, seen)
    if now < seen.panic_until:
        return _decision(serving, f"{most} would do, but panic is not over: hold", spec, seen)
    if _is_within(seen.last_up_at, fleet.cold_start_s, now):
        return _decision(serving, f"{most} would do, but just went up: hold", spec, seen)
    if _is_within(seen.first_at, spec.down_window_s, now):
        return _decision(serving, f"{most} would do, but not known for long: hold", spec, seen)
    if most == 0 and now - (seen.busy_at or now) < spec.to_zero_after_s:
        most = 1
    target = max(most, serving - max(1, ceil((serving - most) * spec.down_share)))
    if target == serving:
        return _decision(serving, "idle, but not for long enough to go to zero", spec, seen)
    reason = f"{most} was enough for {spec.down_window_s:.0f} s"
    return _decision(target, reason, spec, replace(seen, last_down_at=now))


def _is_within(at: float | None, seconds: float, now: float) -> bool:
    return at is not None and now - at < seconds


def _decision(serving: int, reason: str, spec: ScalingSpec, state: ScalingState) -> ScalingDecision:
    standbys = spec.standbys if serving > 0 else 0
    return ScalingDecision(serving + standbys, serving, reason, state)
