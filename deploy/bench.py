"""`graceway bench …`: the sub-commands. Each imports what it measures when it runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

EXIT_CLAIM_FAILED = 1
EXIT_WRONG_OPTION = 2

JsonFile = Annotated[Path | None, typer.Option("--json", help="Writes the figures there, too.")]

app = typer.Typer(
    help="Measure on this machine what is claimed.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def scaling(
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy on each trace.")] = 20,
    first_seed: Annotated[
        int, typer.Option(help="The policy's constants were chosen on seeds 0 to 11.")
    ] = 300,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    only: Annotated[
        list[str] | None, typer.Option("--trace", help="Some of the traces; all without.")
    ] = None,
    page_at: Annotated[
        Path | None, typer.Option("--page", help="Where to write an HTML page with plots.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Simulate the scaling policy against Serve's default and against knowing the future."""
    from rich.console import Console

    from deploy.bench_scaling import as_table, claims, measure
    from replicas.autoscaling.traces import TRACES

    if unknown := set(only or ()) - set(TRACES):
        typer.echo(f"no trace {', '.join(sorted(unknown))}; there is {', '.join(TRACES)}", err=True)
        raise typer.Exit(EXIT_WRONG_OPTION)

    rows = measure(range(first_seed, first_seed + seeds), only or TRACES, workers)
    Console().print(as_table(rows))
    judged = list(claims(rows))
    _write_json(json, {"rows": rows, "claims": judged})
    for claim in judged:
        typer.echo(f"{'holds ' if claim.holds else 'FAILS '} {claim.text} ({claim.seen})")
    if page_at is not None:
        from deploy.bench_scaling_page import page

        page_at.write_text(page(rows, judged, first_seed), encoding="utf-8")
        typer.echo(f"wrote {page_at}")
    if not all(claim.holds for claim in judged):
        raise typer.Exit(EXIT_CLAIM_FAILED)


@app.command("mig")
def mig_plans(
    cases: Annotated[int, typer.Option(min=1)] = 300,
    gpus: Annotated[int, typer.Option(min=1)] = 8,
    seed: int = 1,
) -> None:
    """Time the MIG planner on random sets of models."""
    from deploy.bench_scaling import measure_planner
    from replicas.mig.geometry import geometry_of

    found = measure_planner(geometry_of("h200"), gpus, cases, seed)
    typer.echo(
        f"{found.cases} sets of 1 to 4 models on {gpus} × H200, {found.planned} of them can be carried: "
        f"p50 {found.p50_s * 1e3:.1f} ms, p99 {found.p99_s * 1e3:.1f} ms, worst {found.worst_s * 1e3:.1f} ms"
    )


@app.command()
def decision() -> None:
    """Time one decision over sizes of fleets and numbers of sessions."""
    from deploy.bench_decision import run

    for line in run():
        typer.echo(line)


@app.command()
def shed() -> None:
    """Time a refusal's decision; fails when its p99 is over the claim."""
    from deploy.bench_shed import run

    lines, holds = run()
    for line in lines:
        typer.echo(line)
    if not holds:
        raise typer.Exit(EXIT_CLAIM_FAILED)


@app.command()
def quality(
    config: Annotated[Path, typer.Option("-c", "--config", metavar="FILE", help="The YAML config.")],
    url: Annotated[
        str, typer.Option(help="A running gateway, which knows the replicas that Graceway started.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="One model; all without.")] = None,
    items: Annotated[int, typer.Option(min=1, help="At most so many questions of each kind.")] = 100,
    timeout_s: Annotated[float, typer.Option(min=1.0, help="For each request.")] = 300.0,
    write: Annotated[bool, typer.Option("--write", help="Put the figures into the file.")] = False,
) -> None:
    """Measure what each tier's answers are worth, on running replicas, with the prompt set that ships."""
    import asyncio
    from datetime import date

    from deploy import bench_quality
    from deploy.config import ConfigError, load_config
    from deploy.config_edit import NoSuchTier
    from deploy.status_view import StatusUnavailable, fetch_status
    from fallback_models.quality.interview import InterviewFailed
    from fallback_models.quality.prompts import load_prompts

    try:
        loaded = load_config(config)
        chosen = {n: m for n, m in loaded.models.items() if model in (None, n)}
        if not chosen:
            raise InterviewFailed(f"no model {model}; there is {', '.join(loaded.models)}")
        needed = any(bench_quality.needs_gateway(ladder) for ladder in chosen.values())
        status = fetch_status(url) if needed else None
        for name, ladder in chosen.items():
            prompts = load_prompts().first(items)
            measured = asyncio.run(
                bench_quality.measure(
                    name, ladder, prompts, status, timeout_s, lambda said: typer.echo(said, err=True)
                )
            )
            typer.echo(f"{name}: {len(prompts.open)} open and {len(prompts.exact)} exact questions")
            for one in measured:
                typer.echo(f"  {one.line()}")
            if write:
                bench_quality.write(config, name, measured, date.today())
                typer.echo(f"written to {config}")
            else:
                typer.echo(bench_quality.fragment(name, measured, date.today()))
    except (ConfigError, NoSuchTier, InterviewFailed, StatusUnavailable) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_WRONG_OPTION) from None


@app.command("kv-transport")
def kv_transport(
    rounds: Annotated[int, typer.Option(min=1)] = 9,
    size_bytes: Annotated[
        list[int] | None, typer.Option("--size", help="Bytes of a block; several are measured in turn.")
    ] = None,
) -> None:
    """Move KV blocks to and from a Redis of its own, against redis-py and a bare socket."""
    import asyncio

    from deploy.bench_kv_transport import claims, measure
    from state_store.embedded import EmbeddedRedis

    async def run() -> bool:
        redis, holds = EmbeddedRedis(maxmemory_bytes=1 << 30), True
        await redis.start()
        try:
            for size in size_bytes or (1_474_560, 5_898_240):
                rows = await asyncio.to_thread(measure, redis.url, size, rounds)
                typer.echo(f"blocks of {size / 1e6:.1f} MB, {rounds} rounds")
                for row in rows:
                    typer.echo(f"  {row.text}")
                for is_seen, text in claims(rows):
                    typer.echo(f"  {'holds ' if is_seen else 'FAILS '} {text}")
                    holds &= is_seen
        finally:
            await redis.stop()
        return holds

    if not asyncio.run(run()):
        raise typer.Exit(EXIT_CLAIM_FAILED)


@app.command("kv-restore")
def kv_restore(
    model: Annotated[Path, typer.Option(help="A model's folder, for vLLM on the CPU.")] = Path(
        "models/smollm2-135m"
    ),
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    only: Annotated[
        list[str] | None, typer.Option("--part", help="length, turns, killed, stream or cost; all without.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Restore and recompute on two real vLLM servers: by length, between turns, after a kill; and the cost of it."""
    import asyncio

    from deploy.bench_kv_restore import PARTS, run

    _refuse_unknown("part", only, PARTS)
    found = asyncio.run(run(model, rounds, only or PARTS, typer.echo))
    _write_json(json, found)
    if not found.holds:
        raise typer.Exit(EXIT_CLAIM_FAILED)


@app.command("kv-codecs")
def kv_codecs(
    model: Annotated[Path, typer.Option(help="A model's folder, for vLLM on the CPU.")] = Path(
        "models/smollm2-135m"
    ),
    prompts: Annotated[int, typer.Option(min=1)] = 12,
    only: Annotated[
        list[str] | None, typer.Option("--codec", help="none, lz4, int8 or fp8; all without.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """Make KV blocks smaller in each way, on two real vLLM servers: bytes, time to restore, and whether answers change."""
    import asyncio
    from typing import cast, get_args

    from deploy.bench_kv_codecs import run
    from state_store.kv.block_format import Codec

    _refuse_unknown("codec", only, get_args(Codec))
    codecs = cast(list[Codec], only or list(get_args(Codec)))
    rows = asyncio.run(run(model, codecs, prompts, typer.echo))
    _write_json(json, rows)
    if not all(row.is_as_wanted for row in rows):
        raise typer.Exit(EXIT_CLAIM_FAILED)


def _refuse_unknown(what: str, asked: Sequence[str] | None, known: Sequence[str]) -> None:
    """Ends the command over a value that an option does not have."""
    if unknown := set(asked or ()) - set(known):
        typer.echo(f"no {what} {', '.join(sorted(unknown))}; there is {', '.join(known)}", err=True)
        raise typer.Exit(EXIT_WRONG_OPTION)


def _write_json(path: Path | None, content: object) -> None:
    if path is None:
        return
    import orjson

    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
