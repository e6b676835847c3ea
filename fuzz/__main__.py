"""`make fuzz`: every target for its share of `FUZZ_SECONDS`, in a process each, and a table of what was run.

What an input reached is kept under `build/fuzz/`, where the next run begins. A finding is kept there, too, and named.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fuzz.seeds import SEEDS
from fuzz.targets import TARGETS

HOME = Path("build/fuzz")
HANGS_AFTER_S = 10
_LONGEST_BYTES = 4096


@dataclass(frozen=True)
class Explored:
    """How one target fared."""

    target: str
    inputs: int
    finding: str
    """Where the input lies that broke it, and how; empty when none did."""


def main(names: list[str]) -> int:
    seconds = int(os.environ.get("FUZZ_SECONDS", "600"))
    targets = names or list(TARGETS)
    if not TARGETS.keys() >= set(targets):
        sys.stderr.write(f"usage: python -m fuzz [TARGET …], of {', '.join(TARGETS)}\n")
        return 2
    done = [explore(name, max(1, seconds // len(targets))) for name in targets]
    for one in done:
        sys.stdout.write(f"{one.target:14} {one.inputs:12,} inputs  {one.finding or 'no crash, no hang'}\n")
    sys.stdout.write(f"{'all':14} {sum(one.inputs for one in done):12,} inputs\n")
    return 1 if any(one.finding for one in done) else 0


def explore(name: str, seconds: int, home: Path = HOME) -> Explored:
    """Runs one target for so long, from its seeds and whatever an earlier run kept."""
    corpus = home / name
    corpus.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(SEEDS[name]):
        (corpus / f"seed-{index}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}", f"-timeout={HANGS_AFTER_S}", f"-max_len={_LONGEST_BYTES}",
        "-print_final_stats=1", f"-artifact_prefix={home}/{name}-",
    ]  # fmt: skip
    command = [sys.executable, "-m", "fuzz.explore", name, *options, str(corpus)]
    ran = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    (home / f"{name}.log").write_text(ran.stdout + ran.stderr)
    return _judged(name, ran)


def _judged(name: str, ran: "subprocess.CompletedProcess[str]") -> Explored:
    said = ran.stdout + ran.stderr
    counted = re.findall(r"stat::number_of_executed_units:\s*(\d+)", said) or re.findall(
        r"^#(\d+)\t", said, re.M
    )
    broke = re.search(r"Test unit written to (\S+)", said)
    why = re.search(r"=== Uncaught Python exception: ===\n(.*)", said)
    finding = ""
    if ran.returncode:
        what = why.group(1)[:200] if why else said.strip().rpartition("\n")[2]
        finding = f"{broke.group(1) if broke else 'no input kept'}: {what}"
    return Explored(name, int(counted[-1]) if counted else 0, finding)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
