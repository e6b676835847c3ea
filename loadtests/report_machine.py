"""On what a report was made: processor, memory, kernel, versions, and the revision of the code."""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from loadtests.processes import ROOT

PACKAGES = ("graceway", "ray", "uvicorn", "uvloop", "httptools", "redis", "locust")


def machine() -> dict[str, str]:
    """In the order in which it is shown."""
    found = {
        "processor": f"{psutil.cpu_count()} × {_processor()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "load before": ", ".join(f"{load:.2f}" for load in psutil.getloadavg()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "revision": _revision(),
        "hot path": _hot_path(),
    }
    return found | {name: _version(name) for name in PACKAGES}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _hot_path() -> str:
    """What a gateway started from here runs; asked of another process, as load tests import nothing of what they test."""
    asks = "from gateway.compiled import folders; print('compiled' if folders('gateway') else 'plain Python')"
    done = subprocess.run([sys.executable, "-c", asks], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _revision() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
