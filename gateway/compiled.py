"""Where the compiled form of the hot path lies, if it was made of exactly these sources.

`scripts/compile_hot_path.py` puts it there. One of other sources is as good as none, so that an edited module is never
shadowed by what it once was. `GRACEWAY_PLAIN=1` leaves it out.
"""

import os
import platform
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parent.parent
GROUP = "hot_path"
"""The name of the library that holds all compiled modules."""

_GATEWAY = (
    "app", "attempt", "breakers", "callers", "connections", "context", "course", "coverage", "dispatch", "durations",
    "fleet", "guarded_http", "hot_http", "http", "http_client", "journal", "kv_durability", "ledger", "leg", "legs",
    "lessons", "otlp", "pipeline", "queue", "recorder", "replica", "replica_answer", "reply", "request", "sessions",
    "shares", "sse", "stop", "telemetry", "template", "tier", "trace_context", "trail", "turn",
)  # fmt: skip
_POLICY = (
    "admission", "arrivals", "decide", "decision", "elsewhere", "facts", "forecast", "health", "limit", "patience", "prefill",
    "quantile", "recent", "retry_budget", "route", "snapshot", "window",
)  # fmt: skip
SOURCES = tuple(f"gateway/{name}.py" for name in _GATEWAY) + tuple(
    f"gateway/policy/{name}.py" for name in _POLICY
)
"""What runs for each request or chunk."""


def folder_for(root: Path = ROOT) -> Path:
    """Where the compiled form of the sources under `root` belongs, for this Python on this kind of machine."""
    digest = sha256()
    for source in SOURCES:
        digest.update((root / source).read_bytes())
    kind = f"{sys.implementation.cache_tag}-{platform.machine()}"
    return root / "build" / "compiled" / f"{digest.hexdigest()[:16]}-{kind}"


def folders(package: str) -> list[str]:
    """Where to look for the modules of a package first: nowhere, or where they are compiled."""
    folder = _found()
    return [] if folder is None else [str(folder / package)]


@cache
def _found() -> Path | None:
    """The compiled form of this process' own sources, which are read once for all packages."""
    if os.environ.get("GRACEWAY_PLAIN") == "1" or not (ROOT / "build" / "compiled").is_dir():
        return None
    folder = folder_for()
    if not folder.is_dir():
        return None
    # For the library that the modules share; nothing else lies there.
    sys.path.append(str(folder))
    return folder
