"""Compiles the hot path (`gateway/compiled.py` says which modules) with mypyc, where there is a C compiler.

The gateway does the same without, at about twice the CPU a request. Does nothing when it has been done for these sources;
never fails: what can't be compiled runs as plain Python.
"""

import contextlib
import io
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from gateway.compiled import GROUP, SOURCES, folder_for  # noqa: E402 - the checkout that this script belongs to


def main() -> None:
    os.chdir(ROOT)
    folder = folder_for()
    if folder.is_dir():
        _say("the hot path is compiled already")
        return
    if (missing := _missing()) is not None:
        _say(f"{missing}: the hot path runs as plain Python, at about twice the CPU a request")
        return
    _say("compiling the hot path: a minute or two, once")
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            _compile_into(folder)
    except (Exception, SystemExit) as error:
        log = ROOT / "build" / "compiled.log"
        log.write_text(f"{output.getvalue()}\n{error!r}\n")
        _say(f"it can't be compiled ({log.relative_to(ROOT)} says why): it runs as plain Python")


def _missing() -> str | None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(os.environ.get("CC", compiler)) is None:
        return f"there is no C compiler ({compiler})"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's headers are not installed"
    return None


def _compile_into(folder: Path) -> None:
    from mypyc.build import mypycify
    from setuptools import Distribution

    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        arguments = ["--config-file", "pyproject.toml", "--cache-dir", f"{scratch}/mypy", *SOURCES]
        modules = mypycify(
            arguments, opt_level="1", debug_level="0", group_name=GROUP, target_dir=f"{scratch}/c"
        )
        command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = f"{scratch}/lib", f"{scratch}/tmp"
        command.ensure_finalized()
        command.run()
        for old in folder.parent.glob("*-*"):
            shutil.rmtree(old)
        Path(scratch, "lib").rename(folder)


def _say(text: str) -> None:
    sys.stdout.write(f"[4/4] {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
