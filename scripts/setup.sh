#!/usr/bin/env bash
# Creates .venv, installs the locked dependencies and prepares the demonstration models, compiles the
# hot path where there is a C compiler. Does nothing when that is done.
# GRACEWAY_EXTRA=gpu installs vLLM for GPUs instead of the CPU build.
set -euo pipefail
cd "$(dirname "$0")/.."

extra="${GRACEWAY_EXTRA:-cpu}"
lock="requirements/$extra.txt"
stamp=".venv/.graceway-setup"
want="$(cat "$lock" pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1)"

if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$want" ]; then
  python="${PYTHON:-python3}"
  "$python" -c 'import sys; sys.exit(sys.version_info[:2] < (3, 11))' || {
    echo "Graceway needs Python 3.11 or newer; $python is $("$python" -V). Set PYTHON=python3.11." >&2
    exit 2
  }
  echo "[1/4] creating .venv"
  [ -x .venv/bin/python ] || "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9

  echo "[2/4] installing $(grep -c '^[a-z]' "$lock") locked packages ($lock)"
  # uv reads UV_FIND_LINKS, not pip's setting of the same meaning. Where neither names a folder that holds torch's CPU
  # build, uv finds it by itself.
  export UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}" VIRTUAL_ENV="$PWD/.venv"
  install() { .venv/bin/uv pip install --quiet --no-deps "$@" -r "$lock"; }
  if [ "$extra" = cpu ]; then install || install --torch-backend cpu; else install; fi
  .venv/bin/uv pip install --quiet --no-deps --editable .
  echo "$want" > "$stamp"
else
  echo "[1-2/4] .venv is up to date"
fi

echo "[3/4] demonstration models"
.venv/bin/python -m replicas.demo_models models

# Optional: without a C compiler the same sources run as they are.
.venv/bin/python scripts/compile_hot_path.py
