"""`graceway drill`: the drills of `loadtests/`, which speak HTTP only and therefore run as a program of their own."""

import os
import sys

import typer


def add_to(app: typer.Typer) -> None:
    """Every argument is the program's own, `--help` too."""
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command("drill", context_settings=settings, add_help_option=False)(drill)


def drill(context: typer.Context) -> None:
    """Break something on purpose and say whether what must hold held: `graceway drill list`; `drill tiers` tries each rung."""
    os.execv(sys.executable, [sys.executable, "-m", "loadtests.drill", *context.args])
