"""`graceway report`: fetches the chronicle from a running gateway, and writes what happened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from deploy.document import as_html, as_markdown
from deploy.incident import Incident, events_of, incidents, moments_of, tiers_of
from deploy.incident_report import report_on, title_of
from deploy.status_view import fetch_json, fetch_status

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """One incident's report, in both forms."""

    title: str
    markdown: Path
    html: Path


def incidents_in(chronicle: Json, model: str | None, since_s: float) -> list[Incident]:
    """All incidents that went on within the last `since_s` seconds, oldest first."""
    now, events = float(chronicle["now"]), events_of(chronicle["pages"])
    found = [
        incident
        for name, ladder in chronicle["models"].items()
        if model in (None, name)
        for incident in incidents(name, tiers_of(ladder), moments_of(name, chronicle["pages"]), events, now)
        if incident.ends_at >= now - since_s
    ]
    return sorted(found, key=lambda incident: incident.begins_at)


def unproven_in(status: Json, model: str) -> list[str]:
    return [t["name"] for t in status["models"].get(model, {}).get("tiers", ()) if t.get("proven") is False]


def write(incident: Incident, unproven: Sequence[str], folder: Path) -> Written:
    folder.mkdir(parents=True, exist_ok=True)
    at = datetime.fromtimestamp(incident.begins_at)
    stem = f"{''.join(c if c.isalnum() else '-' for c in incident.model)}-{at:%Y%m%d-%H%M%S}"
    blocks, title = report_on(incident, unproven), title_of(incident)
    written = Written(title, folder / f"{stem}.md", folder / f"{stem}.html")
    written.markdown.write_text(as_markdown(blocks), encoding="utf-8")
    written.html.write_text(as_html(title, blocks), encoding="utf-8")
    return written


@dataclass(frozen=True, slots=True)
class Reports:
    """What was written, and whether all that is on file was read for it."""

    written: list[Written]
    is_whole: bool


def report(
    url: str, folder: Path, model: str | None, since_s: float, latest_only: bool, key: str | None = None
) -> Reports:
    """Writes the reports. Raises StatusUnavailable."""
    chronicle = fetch_json(url, "/chronicle", key)
    found = incidents_in(chronicle, model, since_s)
    status = fetch_status(url, key) if found else {}
    shown = found[-1:] if latest_only else found
    written = [write(one, unproven_in(status, one.model), folder) for one in shown]
    return Reports(written, bool(chronicle["is_whole"]))
