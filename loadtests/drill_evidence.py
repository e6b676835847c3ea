"""What a drill leaves behind when it failed: verdict, requests that went wrong, metrics, configs and logs."""

import time
from pathlib import Path

import orjson

from loadtests.drill_observed import Observed
from loadtests.drill_verdict import Verdict
from loadtests.fleet import Fleet
from loadtests.processes import ROOT, ServerProcess

FOLDER = ROOT / "build" / "drills"


def save_evidence(
    folder: Path, verdict: Verdict, runs: dict[str, Observed], fleets: dict[str, Fleet]
) -> Path:
    """Writes one folder, named by drill and time; its path."""
    place = folder / f"{verdict.drill}-{time.strftime('%Y%m%d-%H%M%S')}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "verdict.txt").write_text(verdict.text() + "\n")
    _write(place / "verdict.json", verdict)
    for name, seen in runs.items():
        wrong = [o for o in seen.outcomes if o.stays and (o.is_degraded or not o.is_in_time)]
        _write(place / f"{name}-requests.json", [outcome.complaint() for outcome in wrong])
        _write(place / f"{name}-metrics.json", seen.scrapes)
    for name, fleet in fleets.items():
        _save_fleet(place, name, fleet)
    return place


def _save_fleet(place: Path, name: str, fleet: Fleet) -> None:
    if fleet.config is not None:
        (place / f"{name}-config.yaml").write_text(fleet.config.read_text())
    servers: dict[str, ServerProcess] = {f"front-{n}": front for n, front in enumerate(fleet.fronts)}
    servers |= {f"engine-{n}": engine for n, engine in enumerate(fleet.engines())}
    for title, server in servers.items():
        (place / f"{name}-{title}.log").write_text("".join(server.output))


def _write(path: Path, content: object) -> None:
    path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
