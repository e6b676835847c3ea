"""Compiles the hot path (`gateway/compiled.py` says which modules) with mypyc, where there is a C compiler.

The gateway does the same without, at about twice the CPU a request. Does nothing when it has been done, or was in vain,
for these sources; never fails: what can't be compiled runs as plain Python.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

FLAGS = ("-fno-semantic-interposition", "-fno-plt")
"""Nobody replaces a function of the library from outside, so that calls within it are direct, and small ones inlined: with
them and -O2, a request takes a tenth less CPU than with -O1."""

from gateway.compiled import GROUP, SOURCES, folder_for  # noqa: E402 - the checkout that this script belongs to
from scripts.native_constructors import with_constructors  # noqa: E402


def main() -> None:
    os.chdir(ROOT)
    folder = folder_for()
    log = folder.with_suffix(".log")
    if folder.is_dir():
        _say("the hot path is compiled already")
    elif log.is_file():
        _say_in_vain(log)
    elif (missing := _missing()) is not None:
        _say(f"{missing}: the hot path runs as plain Python, at about twice the CPU a request")
    else:
        _say("compiling the hot path: four minutes of CPU, once")
        _compile(folder, log)


def _missing() -> str | None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(os.environ.get("CC", compiler)) is None:
        return f"there is no C compiler ({compiler})"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's headers are not installed"
    return None


def _compile(folder: Path, log: Path) -> None:
    """Leaves what is compiled in `folder`, if every module of it can be imported, and what went wrong in `log`."""
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.parent.mkdir(parents=True)
    scratch = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        with log.open("w") as output:
            subprocess.run(
                [sys.executable, __file__, str(scratch)], stdout=output, stderr=subprocess.STDOUT, check=True
            )
            (scratch / "lib").rename(folder)
            _import_all(output)
        log.unlink()
    except (OSError, subprocess.CalledProcessError):
        shutil.rmtree(folder, ignore_errors=True)
        _say_in_vain(log)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _import_all(output: TextIO) -> None:
    modules = ", ".join(source.removesuffix(".py").replace("/", ".") for source in SOURCES)
    env = {**os.environ, "GRACEWAY_PLAIN": "0"}
    subprocess.run(
        [sys.executable, "-c", f"import {modules}"],
        stdout=output, stderr=subprocess.STDOUT, env=env, check=True,
    )  # fmt: skip


def build(scratch: Path) -> None:
    """Compiles into `scratch`/lib. A process of its own: compilers end theirs when they fail."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(_sources(scratch))
    arguments = ["--config-file", f"{ROOT}/pyproject.toml", "--cache-dir", f"{scratch}/mypy", *SOURCES]
    modules = mypycify(arguments, opt_level="2", debug_level="0", group_name=GROUP, target_dir=f"{scratch}/c")
    for module in modules:
        module.extra_compile_args = [*module.extra_compile_args, *FLAGS]
    command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = f"{scratch}/lib", f"{scratch}/tmp"
    command.ensure_finalized()
    command.run()


def _sources(scratch: Path) -> Path:
    """A copy of what the hot path consists of, and of what it imports, in the form that is compiled."""
    folder = scratch / "sources"
    for package in ("gateway", "fallback_models", "replicas", "state_store"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for source in SOURCES:
        (folder / source).write_text(with_constructors((ROOT / source).read_text()))
    return folder


def _say_in_vain(log: Path) -> None:
    _say(f"the hot path can't be compiled ({log.relative_to(ROOT)} says why): it runs as plain Python")


def _say(text: str) -> None:
    sys.stdout.write(f"[4/4] {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        build(Path(sys.argv[1]))
    else:
        main()
