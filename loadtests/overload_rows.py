"""The rows of the overload table: a load, whether there is a tier to go down to, and what must hold."""

from collections.abc import Callable
from dataclasses import dataclass

from loadtests.overload_load import Stream, in_sequence, steady
from loadtests.overload_trial import (
    CAPACITY_PER_S,
    OverloadTrial,
    quantile,
    share_degraded,
    share_in_time,
)

SMALL_SLOTS, SMALL_SERVICE_S = 64, 0.25
REFUSED_WITHIN_S = 0.005
COLLAPSED = 0.2
"""The control run shows what admission is for when less than this share comes in time."""
SPIKE_BEGINS_S, SPIKE_S, SPIKE_CALM_S = 5.0, 10.0, 12.0
RAMP_TOP = 1.2
RAMP_UP_S, RAMP_HOLD_S = 15.0, 25.0
GAIN = (SMALL_SLOTS / SMALL_SERVICE_S) / CAPACITY_PER_S
"""How many times more requests the small tier serves than the primary."""
PULSE_S, PULSE_CALM_S, PULSE_K, PULSE_CALM_K = 0.5, 2.5, 8.0, 0.3
RECOVERED_S = 1.6
"""After a pulse: what waits and what runs is served."""

Judge = Callable[[OverloadTrial], list[str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One load. `judges` say, in words, what was not kept."""

    name: str
    streams: tuple[Stream, ...]
    has_small_tier: bool
    judges: tuple[Judge, ...]
    front: str = "graceway"

    def misses(self, trial: OverloadTrial) -> list[str]:
        return [miss for judge in self.judges for miss in judge(trial)]


def least(what: str, measure: Callable[[OverloadTrial], float], wanted: float) -> Judge:
    def judge(trial: OverloadTrial) -> list[str]:
        found = measure(trial)
        return [f"{what} {found:.2%}, wanted {wanted:.2%}"] if found < wanted else []

    return judge


def _all_in_time(trial: OverloadTrial) -> float:
    return share_in_time(trial.outcomes)


def _critical_in_time(trial: OverloadTrial) -> float:
    return share_in_time(trial.of("critical"))


def _goodput(trial: OverloadTrial) -> float:
    return trial.goodput


def _primary_use(trial: OverloadTrial) -> float:
    return trial.primary_use


def _critical_on_top(trial: OverloadTrial) -> float:
    critical = trial.of("critical")
    return sum(o.is_top for o in critical) / len(critical) if critical else 1.0


def refusals_at_once(trial: OverloadTrial) -> list[str]:
    """Refused at once rather than late, and told why."""
    refused = trial.refused()
    p99_s = quantile([o.took_s for o in refused], 0.99)
    found: list[str] = []
    if p99_s > REFUSED_WITHIN_S:
        found.append(f"refusals take {p99_s * 1e3:.1f} ms p99, wanted {REFUSED_WITHIN_S * 1e3:g} ms")
    if unexplained := sum(not o.is_explained for o in refused):
        found.append(f"{unexplained} refusals without a reason or a Retry-After")
    return found


def all_ends_declared(trial: OverloadTrial) -> list[str]:
    """What isn't answered is refused: nothing is cut, late beyond use, or silent."""
    odd = [o for o in trial.outcomes if o.status not in (200, 429, 503)]
    return [f"{len(odd)} neither answered nor refused"] if odd else []


def back_soon(trial: OverloadTrial) -> list[str]:
    after_s = trial.back_on_top_s(SPIKE_BEGINS_S + SPIKE_S)
    return [f"back on the top tier after {after_s:.1f} s, wanted 5 s"] if after_s > 5.0 else []


def few_turns(trial: OverloadTrial) -> list[str]:
    found = trial.turns()
    return [f"the degraded share changed its direction {found} times"] if found > 2 else []


def as_much_as_needed(trial: OverloadTrial) -> list[str]:
    """On the plateau, the degraded share is (k−1)/(k(1−1/g)) for the load k that came, within a tenth of it."""
    plateau = trial.due_between(RAMP_UP_S, RAMP_UP_S + RAMP_HOLD_S)
    k = len(plateau) / RAMP_HOLD_S / CAPACITY_PER_S
    wanted = max(0.0, (k - 1.0) / (k * (1.0 - 1.0 / GAIN)))
    found = share_degraded(plateau)
    off = abs(found - wanted) > 0.1 * wanted
    return [f"degraded share {found:.1%} at {k:.3f}×, wanted {wanted:.1%} ± a tenth"] if off else []


def recovers(trial: OverloadTrial) -> list[str]:
    """Before each pulse everything is as if there had been none."""
    period_s = PULSE_S + PULSE_CALM_S
    stuck = [o for o in trial.outcomes if o.due_s % period_s > PULSE_S + RECOVERED_S and not o.is_top]
    pulses = sorted({int(o.due_s // period_s) for o in stuck})
    return [f"not recovered after {len(pulses)} pulses: {pulses[:10]}"] if pulses else []


def collapses(trial: OverloadTrial) -> list[str]:
    """Without admission everything waits in the engines until it is of no use."""
    found = _all_in_time(trial)
    return [f"{found:.1%} in time without admission: the load is no overload"] if found > COLLAPSED else []


def pulses(count: int) -> tuple[Stream, ...]:
    parts = ((PULSE_S, PULSE_K, PULSE_K), (PULSE_CALM_S, PULSE_CALM_K, PULSE_CALM_K))
    return in_sequence(*(part for _ in range(count) for part in parts))


def rows(pulse_count: int = 100) -> tuple[Row, ...]:
    """All rows, the control run first."""
    critical = least("critical in time", _critical_in_time, 0.999)
    refusals: tuple[Judge, ...] = (refusals_at_once, all_ends_declared)
    few_critical = {"critical": 0.05, "standard": 0.95}
    ramp = in_sequence(
        (RAMP_UP_S, 0.5, RAMP_TOP), (RAMP_HOLD_S, RAMP_TOP, RAMP_TOP), (RAMP_UP_S, RAMP_TOP, 0.5)
    )
    spike = (
        steady(0.5, SPIKE_BEGINS_S + SPIKE_S + SPIKE_CALM_S),
        Stream(SPIKE_BEGINS_S, SPIKE_BEGINS_S + SPIKE_S, 12.0, 12.0, {"sheddable": 1.0}),
    )
    return (
        Row("control-3x", (steady(3.0),), False, (collapses,), front="direct"),
        Row(
            "3x-small", (steady(3.0),), True,
            (
                least("in time", _all_in_time, 0.99), critical, least("primary's share", _primary_use, 0.95),
                least("critical on the primary", _critical_on_top, 0.99), all_ends_declared,
            ),
        ),
        Row("10x-small", (steady(10.0),), True, (least("in time", _all_in_time, 0.97), critical, all_ends_declared)),
        Row("3x", (steady(3.0),), False, (least("goodput", _goodput, 0.97), critical, *refusals)),
        Row(
            "10x-5%", (steady(10.0, mix=few_critical),), False,
            (least("goodput", _goodput, 0.9), critical, *refusals),
        ),
        Row(
            "spike", spike, True,
            (least("critical in time", _critical_in_time, 0.9995), back_soon, few_turns, all_ends_declared),
        ),
        Row("ramp", ramp, True, (critical, as_much_as_needed, all_ends_declared)),
        Row("pulses", pulses(pulse_count), True, (critical, recovers, all_ends_declared)),
    )  # fmt: skip
