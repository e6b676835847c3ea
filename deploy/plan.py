"""`graceway plan …`: the sub-commands. They compute and print; nothing is started, changed or reached."""

from pathlib import Path
from typing import Annotated

import typer

EXIT_NO_PLAN = 1
EXIT_WRONG_FILE = 2

app = typer.Typer(
    help="Plan capacity, MIG slices and availability. Nothing is changed.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def mig(
    file: Annotated[
        Path, typer.Argument(help="Which models must be carried, and on what: YAML, see docs/operations.md.")
    ],
    parted: Annotated[bool, typer.Option("--mig-parted", help="Print a mig-parted config instead.")] = False,
    here: Annotated[
        bool, typer.Option("--here", help="Start from what this node's driver says stands.")
    ] = False,
) -> None:
    """Find the cheapest legal partition for a set of models, and the commands that lead there."""
    from rich.console import Console

    from deploy import plan_mig
    from deploy.config import ConfigError
    from replicas.mig.commands import mig_parted, nvidia_smi
    from replicas.mig.discovery import NvmlUnavailable, discover
    from replicas.mig.planner import NoPlan
    from replicas.mig.transition import NoTransition, transition

    try:
        spec = plan_mig.load_mig_spec(file)
        made = plan_mig.planned(spec, file)
        if parted:
            typer.echo(mig_parted(made), nl=False)
            return
        current = plan_mig.standing_on(discover(), file) if here else plan_mig.standing_of(spec, file)
        steps = transition(current, made)
    except ConfigError as error:
        raise _failed(error, EXIT_WRONG_FILE) from None
    except (NoPlan, NoTransition, NvmlUnavailable) as error:
        raise _failed(error, EXIT_NO_PLAN) from None
    Console().print(plan_mig.as_table(made, steps))
    typer.echo(plan_mig.summary(made, spec, made.geometry))
    typer.echo(f"{steps.disturbed} running replicas disturbed, {steps.destroyed} slices destroyed. Commands:")
    for line in nvidia_smi(steps):
        typer.echo(line)


@app.command()
def resources() -> None:
    """Print what Ray is to be told of this node's GPUs and MIG slices, for `ray start --resources`."""
    import json

    from replicas.mig.discovery import NvmlUnavailable, discover, ray_resources

    try:
        found = ray_resources(discover())
    except NvmlUnavailable as error:
        raise _failed(error, EXIT_NO_PLAN) from None
    typer.echo(json.dumps({name: count for name, count in found.items() if name != "GPU"}))


@app.command()
def capacity(
    gpu: Annotated[str, typer.Option(help="Such as h200, h100, a100-80gb.")],
    requests_per_s: Annotated[float, typer.Option(min=0.0)],
    prompt_tokens: Annotated[int, typer.Option(min=1)],
    answer_tokens: Annotated[int, typer.Option(min=1)],
    model: Annotated[Path | None, typer.Option(help="A folder with config.json and *.safetensors.")] = None,
    weights_gib: Annotated[float, typer.Option(min=0.0, help="Instead of a folder.")] = 0.0,
    kv_bytes_per_token: Annotated[int, typer.Option(min=0, help="Instead of a folder.")] = 0,
    itl_s: Annotated[float, typer.Option(help="Seconds between two tokens.")] = 0.2,
    ttft_s: Annotated[float, typer.Option(help="Seconds to the first token.")] = 5.0,
    utilization: Annotated[float, typer.Option(min=0.01, max=1.0)] = 0.75,
    spares: Annotated[int, typer.Option(min=0, help="Replicas beyond need.")] = 0,
) -> None:
    """Say how many replicas a load needs, for each size of slice."""
    from rich.console import Console

    from deploy.plan_capacity import Traffic, as_table, capacities
    from replicas.mig.geometry import GIB, UnknownProfile, geometry_of
    from replicas.mig.need import Need, Slo, UnknownModel, config_of, weight_bytes
    from replicas.mig.need import kv_bytes_per_token as kv_bytes_of

    if model is None and not (weights_gib and kv_bytes_per_token):
        raise _failed("give --model, or --weights-gib and --kv-bytes-per-token", EXIT_WRONG_FILE)
    try:
        geometry = geometry_of(gpu)
        need = Need(
            name=str(model or "model"),
            weights_bytes=int(weights_gib * GIB) or weight_bytes(model or Path()),
            kv_bytes_per_token=kv_bytes_per_token or kv_bytes_of(config_of(model or Path())),
            context_tokens=prompt_tokens + answer_tokens,
            concurrency=1,
            slo=Slo(itl_s=itl_s, ttft_s=ttft_s),
        )
    except (UnknownModel, UnknownProfile) as error:
        raise _failed(error, EXIT_WRONG_FILE) from None
    traffic = Traffic(requests_per_s, prompt_tokens, answer_tokens)
    Console().print(as_table(capacities(need, traffic, geometry, utilization, spares)))


@app.command()
def availability(
    replicas: Annotated[int, typer.Option(min=1)] = 2,
    needed: Annotated[int, typer.Option(min=1, help="Replicas without which the tier can't serve.")] = 1,
    mtbf_h: Annotated[
        float, typer.Option(min=0.01, help="Hours between two failures of one replica.")
    ] = 720.0,
    detect_s: Annotated[float, typer.Option(min=0.0)] = 20.0,
    restart_s: Annotated[float, typer.Option(min=0.0)] = 5.0,
    load_s: Annotated[float, typer.Option(min=0.0, help="Weights into memory.")] = 60.0,
    warm_up_s: Annotated[float, typer.Option(min=0.0)] = 10.0,
    zones: Annotated[int, typer.Option(min=1, help="Domains that fail as a whole.")] = 1,
    zone_availability: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    below: Annotated[
        list[float] | None, typer.Option(help="Availability of a tier below; once for each.")
    ] = None,
    shared: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of what all tiers depend on.")] = 1.0,
) -> None:
    """Say how often a tier and its ladder answer, from how often replicas fail and how fast they recover."""
    from deploy import plan_availability as plan

    if needed > replicas:
        raise _failed(f"{needed} of {replicas} replicas can't be needed", EXIT_WRONG_FILE)
    recovery = plan.Recovery(detect_s, restart_s, load_s, warm_up_s)
    domains = plan.spread(replicas, zones, zone_availability)
    found = plan.availability(mtbf_h, recovery, domains, needed, below or (), shared)
    for line in plan.report(found, recovery, replicas, needed):
        typer.echo(line)


def _failed(error: Exception | str, status: int) -> typer.Exit:
    typer.echo(str(error), err=True)
    return typer.Exit(status)
