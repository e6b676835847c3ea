"""A transition in the words of NVIDIA's tools. Nothing here runs them."""

from collections.abc import Sequence

from replicas.mig.layout import Placement, creation_order
from replicas.mig.planner import Plan
from replicas.mig.transition import GpuSteps, Transition


def nvidia_smi(transition: Transition) -> list[str]:
    """Shell lines, GPU by GPU, for somebody to read and run: comments where replicas must drain first.

    Starts are named (`profile:start`), because the driver's own choice can leave no place for the rest. An
    instance whose id is not known is named by its place, to be looked up with `nvidia-smi mig -lgi`.
    """
    return [line for gpu in transition.gpus for line in _lines(gpu)]


def _lines(steps: GpuSteps) -> list[str]:
    lines = [f"# GPU {steps.gpu}: drain {s.model} on {s.placement} first" for s in steps.drained]
    for standing in steps.destroyed:
        known = standing.instance_id is not None
        instance = str(standing.instance_id) if known else f"<id of {standing.placement}>"
        lines.append(f"nvidia-smi mig -i {steps.gpu} -dci -gi {instance}")
        lines.append(f"nvidia-smi mig -i {steps.gpu} -dgi -gi {instance}")
    if steps.created and not steps.kept and not steps.destroyed:
        lines.append(f"nvidia-smi -i {steps.gpu} -mig 1")
    if steps.created:
        places = ",".join(str(w.placement) for w in steps.created)
        lines.append(f"nvidia-smi mig -i {steps.gpu} -cgi {places} -C")
    return lines


def mig_parted(plan: Plan, name: str = "graceway") -> str:
    """A config for `nvidia-mig-parted apply -c NAME`, GPUs with the same slices together.

    mig-parted takes counts only and looks for an order of creation itself, so slices may stand elsewhere than the
    plan puts them; which there are is the same.
    """
    groups: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for gpu, assigned in enumerate(plan.gpus):
        order = creation_order(plan.geometry, [a.placement for a in assigned])
        groups.setdefault(_counts(order), []).append(gpu)
    lines = ["version: v1", "mig-configs:", f"  {name}:"]
    for counts, gpus in groups.items():
        lines += [
            f"    - devices: [{', '.join(map(str, gpus))}]",
            "      mig-enabled: true",
            "      mig-devices:",
        ]
        lines += [f'        "{profile}": {count}' for profile, count in counts]
    return "\n".join(lines) + "\n"


def _counts(order: Sequence[Placement]) -> tuple[tuple[str, int], ...]:
    names = [p.profile for p in order]
    return tuple((name, names.count(name)) for name in dict.fromkeys(names))
