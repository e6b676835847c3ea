"""The command line. Each command imports what it needs when it runs: `graceway check` answers at once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy import bench, drill_cli, plan

if TYPE_CHECKING:
    from deploy.config import Config

EXIT_WRONG_CONFIG = 2
EXIT_UNREACHABLE = 3

app = typer.Typer(
    name="graceway",
    help="A gateway for serving language models that degrades gracefully.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(bench.app, name="bench")
app.add_typer(plan.app, name="plan")
drill_cli.add_to(app)

LookingKey = Annotated[
    str | None,
    typer.Option(
        envvar=["GRACEWAY_ADMIN_KEY", "GRACEWAY_KEY"],
        help="If the gateway wants one: a caller's, or the admin key.",
    ),
]
ConfigFile = Annotated[Path, typer.Option("-c", "--config", metavar="FILE", help="The YAML config.")]


def main() -> None:
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"graceway {version('graceway')}")
        raise typer.Exit


@app.callback()
def _graceway(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None: ...


@app.command()
def check(config: ConfigFile) -> None:
    """Validate a config and say what it means: ladders, capacity, knobs that never apply."""
    from deploy.explain import explain

    explanation = explain(_load(config))
    for line in explanation.ladder:
        typer.echo(line)
    for warning in explanation.warnings:
        typer.echo(f"warning: {warning}")
    typer.echo(f"{config} is valid")


@app.command()
def serve(
    config: ConfigFile,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the port.")] = 1,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Instead of the config's; 0 takes a free one.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Instead of the config's.")] = None,
    grpc_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Instead of the config's; 0 turns gRPC off.")
    ] = None,
) -> None:
    """Run the gateway alone, without Ray, for replicas that already run somewhere."""
    loaded = _load(config)
    address = (
        _allowed_host(loaded, host or loaded.server.host),
        loaded.server.port if port is None else port,
    )
    from deploy.serve import serve as run

    grpc = loaded.server.grpc_port if grpc_port is None else grpc_port
    raise typer.Exit(run(config, loaded, address, grpc, workers))


@app.command()
def up(config: ConfigFile) -> None:
    """Run the whole system: state store, replicas, and the gateway on Ray Serve. Ctrl-C ends all of it."""
    loaded = _load(config)
    server = loaded.server.model_copy(update={"host": _allowed_host(loaded, loaded.server.host)})
    from deploy.up import bring_up

    raise typer.Exit(bring_up(config, loaded.model_copy(update={"server": server})))


@app.command()
def status(
    url: Annotated[str, typer.Option(help="The gateway's address.")] = "http://127.0.0.1:8000",
    as_json: Annotated[bool, typer.Option("--json", help="The same as data.")] = False,
    key: LookingKey = None,
) -> None:
    """Show a running gateway: tiers, replicas, breakers, queue, sessions."""
    from deploy.status_view import StatusUnavailable, fetch_status, render_status

    try:
        report = fetch_status(url, key)
    except StatusUnavailable as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_UNREACHABLE) from None
    if as_json:
        import json

        typer.echo(json.dumps(report, indent=2))
    else:
        render_status(url, report)


@app.command()
def top(
    url: Annotated[str, typer.Option(help="The gateway's address.")] = "http://127.0.0.1:8000",
    key: LookingKey = None,
) -> None:
    """Show what `status` shows, live: who serves, what is given up and why. `q` or Ctrl-C ends it."""
    from deploy.status_view import StatusUnavailable
    from deploy.top import watch

    try:
        watch(url, key)
    except StatusUnavailable as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_UNREACHABLE) from None


@app.command()
def report(
    url: Annotated[str, typer.Option(help="The gateway's address.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="One model's incidents; all without.")] = None,
    hours: Annotated[float, typer.Option(min=0.01, max=6, help="How far back.")] = 6.0,
    every: Annotated[bool, typer.Option("--all", help="All incidents, not only the latest.")] = False,
    folder: Annotated[Path, typer.Option("--out", help="Where the files go.")] = Path("build/incidents"),
    key: LookingKey = None,
) -> None:
    """Write what happened in an incident: timeline, shares, what was given up, what to change."""
    from deploy.report import report as write_reports
    from deploy.status_view import StatusUnavailable

    try:
        reports = write_reports(url, folder, model, hours * 3600, not every, key)
    except StatusUnavailable as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_UNREACHABLE) from None
    for one in reports.written:
        typer.echo(one.markdown.read_text(encoding="utf-8"))
        typer.echo(f"written: {one.markdown} and {one.html}", err=True)
    if not reports.written:
        typer.echo(f"no incident in the last {hours:g} hours", err=True)
    if not reports.is_whole:
        typer.echo(
            "the state store gave no answer: other gateways, and this one's former lives, are missing",
            err=True,
        )


def _allowed_host(config: "Config", host: str) -> str:
    allowed = config.allowed_host(host)
    if allowed != host:
        typer.echo(
            f"no keys are configured, so it listens on {allowed} only, not on {host}. Add `keys`", err=True
        )
    return allowed


def _load(path: Path) -> "Config":
    from deploy.config import ConfigError, load_config

    try:
        return load_config(path)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_WRONG_CONFIG) from None
