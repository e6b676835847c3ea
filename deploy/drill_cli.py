"""`graceway drill`: the drills of `loadtests/`, which speak HTTP only and therefore run as a program of their own."""

import os
import sys

import typer

_PROGRAM = """\
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
import runpy
runpy.run_module("loadtests.drill", run_name="__main__", alter_sys=True)
"""
"""While it is still being imported there is nothing to heal: until it takes Ctrl-C itself, that just ends it."""


def add_to(app: typer.Typer) -> None:
    """Every argument is the program's own, `--help` too."""
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    app.command("drill", context_settings=settings, add_help_option=False)(drill)


def drill(context: typer.Context) -> None:
    """Break something on purpose and say whether what must hold held: `graceway drill list`; `drill tiers` tries each rung."""
    os.execv(sys.executable, [sys.executable, "-c", _PROGRAM, *context.args])
