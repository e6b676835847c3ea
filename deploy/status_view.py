"""Asks a running gateway for its status and says it in words, in a terminal."""

import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape

from deploy.status_words import (
    Report,
    by_urgency,
    config_lines,
    held,
    minute,
    share_of_minute,
    since,
    store_text,
)
from gateway.reason_words import in_words

TIMEOUT_S = 5.0
CLIENT_CERT, CLIENT_KEY = "GRACEWAY_CLIENT_CERT", "GRACEWAY_CLIENT_KEY"
"""The variables that name what is shown to a gateway that asks for certificates: files in PEM form."""


class StatusUnavailable(Exception):  # noqa: N818 - a condition, said to the operator as it is
    """No gateway answers there, or what answers is none."""


def fetch_status(url: str, key: str | None = None) -> dict[str, Any]:
    """The gateway's `/status`. Raises StatusUnavailable with what to do about it."""
    report = fetch_json(url, "/status", key)
    if "models" not in report:
        raise StatusUnavailable(f"{url} answers, but not as a gateway. Name one with --url")
    return report


def fetch_json(url: str, path: str, key: str | None = None) -> dict[str, Any]:
    """What a gateway shows at a path. Raises StatusUnavailable."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        request = urllib.request.Request(url.rstrip("/") + path, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=client_context()) as answer:
            report = json.load(answer)
    except urllib.error.HTTPError as error:
        raise StatusUnavailable(_refusal(url, error.code, key)) from error
    except ValueError as error:
        raise StatusUnavailable(f"{url} is no gateway's address, or answers no status ({error})") from error
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise StatusUnavailable(f"no gateway answers at {url} ({reason}). Name one with --url") from error
    if not isinstance(report, dict):
        raise StatusUnavailable(f"{url} answers, but not as a gateway. Name one with --url")
    return report


def _refusal(url: str, status: int, key: str | None) -> str:
    """What an answer other than 200 means: a gateway that wants a key runs."""
    if status == 401 and key:
        return f"the gateway at {url} runs, and does not know this key. Give one of its `keys`, or its `admin_key`"
    if status == 401:
        return f"the gateway at {url} runs, and wants a key: --key KEY, or GRACEWAY_KEY in the environment"
    return f"no gateway answers at {url} (what is there answers {status}). Name one with --url"


def client_context() -> ssl.SSLContext | None:
    """With the certificate of whoever asks; None without one."""
    certificate = os.environ.get(CLIENT_CERT)
    if certificate is None:
        return None
    context = ssl.create_default_context()
    context.load_cert_chain(certificate, os.environ.get(CLIENT_KEY))
    return context


def render_status(url: str, report: dict[str, Any], console: Console | None = None) -> None:
    """Prints the report; each replica a line, so that it reads at any width."""
    console = console or Console(soft_wrap=True, highlight=False)
    for line in _lines(url, report):
        console.print(line)


def _lines(url: str, report: dict[str, Any]) -> Iterator[str]:
    state = "draining" if report.get("draining") else "ready" if report.get("ready") else _bad("not ready")
    now = float(report.get("now") or 0.0)
    yield f"{escape(url)}: {state}"
    for name, model in by_urgency(report["models"]):
        yield ""
        yield f"[bold]{escape(name)}[/]: {'ready' if model.get('ready') else _bad('not ready')}"
        yield from _standing_lines(model.get("standing") or {}, now)
        for position, tier in enumerate(model["tiers"], 1):
            yield from _tier_lines(position, tier, model)
        if "answers_60s" in model:
            yield "  " + "; ".join(_bad(text) if is_bad else escape(text) for text, is_bad in minute(model))
    yield ""
    yield from _footer(report)


def _standing_lines(standing: Report, now: float) -> Iterator[str]:
    """How the model stands, where that is not well."""
    if standing.get("level") in (None, "best"):
        return
    yield f"  [yellow]{escape(standing['text'] + since(standing, now))}[/]"
    if cost := standing.get("cost"):
        yield f"  [yellow]{escape(cost)}[/]"


def _tier_lines(position: int, tier: dict[str, Any], model: Report) -> Iterator[str]:
    if tier.get("serving"):
        state = f"can serve, served {share_of_minute(tier, model):.0%} of the last minute"
    else:
        state = f"{_bad('can not serve')}{_because(tier.get('reason'))}"
    state += f", {_bad(said)}" if (said := held(tier)) else ""
    waiting = f", {tier['waiting']} waiting" if tier.get("waiting") else ""
    waiting += f"; [yellow]unproven[/]{_because(tier.get('proof'))}" if tier.get("proven") is False else ""
    yield f"  {position}. {escape(tier['name'])} ({tier['backend']}, quality {tier['quality']:g}): {state}{waiting}"
    for replica in tier.get("replicas") or []:
        yield f"       {_replica_line(replica)}"


def _replica_line(replica: dict[str, Any]) -> str:
    state = str(replica.get("state"))
    slots = replica.get("slots")
    load = f"{replica.get('in_flight', 0)}" + (f" of {slots} slots in use" if slots else " in flight")
    zone = f" in zone {escape(replica['zone'])}" if replica.get("zone") else ""
    zone += f" on {escape(replica['mig_slice'])}" if replica.get("mig_slice") else ""
    shown = state if state == "ready" else _bad(state)
    shown = "stands by" if replica.get("stands_by") else shown
    breaker = replica.get("breaker")
    return f"{escape(replica['replica'])}{zone}: {shown}{_because(replica.get('reason'))}, {load}, breaker {breaker}"


def _footer(report: dict[str, Any]) -> Iterator[str]:
    is_available = (report.get("state_store") or {}).get("available")
    yield escape(store_text(report)) if is_available else _bad(store_text(report))
    for line, is_bad in config_lines(report):
        yield _bad(line) if is_bad else f"[yellow]{escape(line)}[/]"
    queue = report.get("queue") or {}
    yield f"queue: {sum(queue.values())} waiting; sessions: {report.get('sessions', 0)}"


def _bad(text: str) -> str:
    return f"[bold red]{escape(text)}[/]"


def _because(reason: object) -> str:
    return f" ({escape(in_words(str(reason)))})" if reason else ""
