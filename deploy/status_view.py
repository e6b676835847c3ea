"""Asks a running gateway for its status and says it in words, in a terminal."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

TIMEOUT_S = 5.0


class StatusUnavailable(Exception):  # noqa: N818 - a condition, said to the operator as it is
    """No gateway answers there, or what answers is none."""


def fetch_status(url: str) -> dict[str, Any]:
    """The gateway's `/status`. Raises StatusUnavailable with what to do about it."""
    address = url.rstrip("/") + "/status"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
            report = json.load(answer)
    except ValueError as error:
        raise StatusUnavailable(f"{url} is no gateway's address, or answers no status ({error})") from error
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise StatusUnavailable(f"no gateway answers at {url} ({reason}). Name one with --url") from error
    if not isinstance(report, dict) or "models" not in report:
        raise StatusUnavailable(f"{url} answers, but not as a gateway. Name one with --url")
    return report


def render_status(url: str, report: dict[str, Any], console: Console | None = None) -> None:
    console = console or Console(soft_wrap=True)
    console.print(f"{escape(url)}: {'ready' if report.get('ready') else '[bold red]not ready[/]'}")
    for name, model in report["models"].items():
        console.print()
        console.print(_table(name, model))
    console.print()
    for line in _footer(report):
        console.print(line)


def _table(name: str, model: dict[str, Any]) -> Table:
    state = "ready" if model.get("ready") else "NOT READY"
    table = Table(title=f"{escape(name)}: {state}", title_justify="left", box=None, pad_edge=False)
    for column in (
        "tier",
        "quality",
        "share 60 s",
        "serves",
        "replica",
        "state",
        "in flight",
        "breaker",
        "reason",
    ):
        table.add_column(column, overflow="fold")
    for tier in model["tiers"]:
        for row in _rows(tier):
            table.add_row(*(escape(str(cell)) for cell in row))
    return table


def _rows(tier: dict[str, Any]) -> Iterator[list[str]]:
    head = [
        f"{tier['name']} ({tier['backend']})",
        f"{tier['quality']:g}",
        f"{tier.get('share_60s') or 0:.0%}",
        "yes" if tier.get("serving") else "no",
    ]
    replicas = tier.get("replicas") or []
    if not replicas:
        yield [*head, "-", "-", "-", "-", tier.get("reason") or ""]
    for replica in replicas:
        yield [*head, *_replica_cells(replica, tier.get("reason") or "")]
        head = [""] * len(head)


def _replica_cells(replica: dict[str, Any], tier_reason: str) -> list[str]:
    load = f"{replica.get('in_flight', 0)}/{replica.get('slots') or '-'}"
    where = f" zone {replica['zone']}" if replica.get("zone") else ""
    reason = replica.get("reason") or tier_reason
    return [
        f"{replica['replica']}{where}",
        str(replica.get("state")),
        load,
        _breaker(replica.get("breaker")),
        reason,
    ]


def _breaker(breaker: object) -> str:
    return str(breaker.get("state", "-")) if isinstance(breaker, dict) else str(breaker or "-")


def _footer(report: dict[str, Any]) -> Iterator[str]:
    store = report.get("state_store") or {}
    if store.get("available"):
        yield f"state store: {escape(str(store.get('url')))}, available"
    else:
        since = f" since {store['since']}" if store.get("since") else ""
        yield f"state store: {escape(str(store.get('url')))}, [bold red]unavailable[/]{escape(str(since))}"
    queue = report.get("queue")
    waiting = sum(v for v in queue.values() if isinstance(v, int)) if isinstance(queue, dict) else queue or 0
    yield f"queue: {waiting} waiting; sessions: {report.get('sessions', 0)}"
