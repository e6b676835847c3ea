"""A running gateway in a terminal, live: who serves, what is given up and why, and what happened.

It shows what the page at `/` shows. `frame` is one picture as a pure function; the rest keeps it current.
"""

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import pairwise
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from deploy.status_view import TIMEOUT_S, StatusUnavailable, client_context, fetch_status
from gateway.events import in_words

EVERY_S = 1.0
SAME_GATEWAY_S = 5.0
"""Behind a balancer each answer may be another gateway's: one is shown for as long as it answers this often."""
EVENTS = 20
_LEVELS = {
    "best": ("OK", "black on green"),
    "reduced": ("REDUCED", "black on yellow"),
    "degraded": ("DEGRADED", "black on bright_yellow"),
    "down": ("DOWN", "bold white on red"),
}
_BARS = " ▁▂▃▄▅▆▇█"
_TIER_COLOURS = ("bright_blue", "yellow", "magenta", "white", "cyan")
_BAD = "bold red"

Report = Mapping[str, Any]


def frame(url: str, report: Report, width: int = 100, lost: str = "") -> RenderableType:
    """One picture of a gateway's `/status`, for a terminal of this width. `lost` says why there is none newer."""
    parts: list[RenderableType] = [_head(url, report, lost)]
    for name, model in report["models"].items():
        parts += [Text(), *_standing(name, model, _now(report)), _tiers(model, width)]
        if replicas := _replicas(model):
            parts.append(replicas)
        parts.append(_counts(model))
    parts += [Text(), _store(report), Text(), Text("What happened, newest first", style="bold")]
    parts += _events(report)
    return Group(*parts)


def _now(report: Report) -> float:
    return float(report.get("now") or 0.0)


def _head(url: str, report: Report, lost: str) -> Text:
    if lost:
        return Text(
            f" NO ANSWER since {_clock(_now(report))}: {lost}. Below is from then. ", "bold white on red"
        )
    state = "draining" if report.get("draining") else "ready" if report.get("ready") else "not ready"
    return Text.assemble(
        (url, "bold"), f"  {state}  as of {_clock(_now(report))}  ", ("q or Ctrl-C ends", "dim")
    )


def _standing(name: str, model: Report, now: float) -> Iterator[Text]:
    standing = model.get("standing") or {}
    label, style = _LEVELS.get(standing.get("level", ""), ("?", "reverse"))
    since = standing.get("since")
    said = standing.get("text") or name
    yield Text.assemble(
        (f" {label} ", style), " ", (said + (f" since {_clock(since)}" if since else ""), "bold")
    )
    if cost := standing.get("cost"):
        yield Text(f"  {cost}")


def _tiers(model: Report, width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    columns = min(60, width - 66)
    table.add_column("Tier", style="bold", overflow="fold", min_width=12)
    for head in ("Quality", "1 min", "1 h"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("TTFT p99", justify="right", no_wrap=True)
    table.add_column("Waiting", justify="right", no_wrap=True)
    if columns >= 10:
        table.add_column("Share, last hour", no_wrap=True)
    hour = model.get("shares_1h") or {"tiers": {}, "sheds": {}}
    all_counts = [*hour["tiers"].values(), *hour["sheds"].values()]
    totals = [sum(column) for column in zip(*all_counts, strict=True)]
    for place, tier in enumerate(model["tiers"]):
        counts = hour["tiers"].get(tier["name"], [])
        colour = _TIER_COLOURS[min(place, len(_TIER_COLOURS) - 1)]
        name = Text(f"{place + 1}. {tier['name']}")
        if not tier.get("serving"):
            name.append(" can't serve", _BAD)
        elif (allotted := tier.get("allotted", 1.0)) < 1.0:
            name.append(f" may have {allotted:.0%} ({tier.get('held_because')})", _BAD)
        if tier.get("proven") is False:
            name.append(" unproven", "yellow")
        table.add_row(
            name,
            f"{tier['quality']:g}",
            f"{tier.get('share_60s') or 0:.0%}",
            f"{sum(counts) / sum(totals):.0%}" if sum(totals) else "–",
            _ttft(tier.get("ttft_p99_s"), tier.get("slo_ttft_s")),
            str(tier.get("waiting") or 0),
            *([Text(_spark(counts, totals, columns), colour)] if columns >= 10 else []),
        )
    return table


def _spark(counts: list[int], totals: list[int], columns: int) -> str:
    """Shares as a row of bars; a minute without requests is a dot."""
    if not totals:
        return ""
    edges = [round(i * len(totals) / columns) for i in range(columns + 1)]
    bars = []
    for begin, end in pairwise(edges):
        of, total = sum(counts[begin:end]), sum(totals[begin:end])
        # The least share that there is still shows.
        height = max(1, round(of / total * 8)) if of else 0
        bars.append(_BARS[height] if total else "·")
    return "".join(bars)


def _ttft(ttft_s: float | None, slo_s: float | None) -> Text:
    if not ttft_s:
        return Text("–")
    return Text(_span(ttft_s), _BAD if slo_s and ttft_s > slo_s else "")


def _replicas(model: Report) -> Table | None:
    rows = [(tier, r) for tier in model["tiers"] for r in tier.get("replicas") or []]
    if not rows:
        return None
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for head in ("Replica", "Tier", "Zone", "State", "Breaker", "In flight", "TTFT p50/p99", "Gap p50/p99"):
        table.add_column(head, overflow="fold")
    for tier, replica in rows:
        state = replica["state"] + (f" ({in_words(replica['reason'])})" if replica.get("reason") else "")
        slots = f" of {replica['slots']}" if replica.get("slots") else ""
        table.add_row(
            Text(replica["replica"]),
            Text(tier["name"]),
            Text(", ".join(part for part in (replica.get("zone"), replica.get("mig_slice")) if part)),
            Text(state, "" if replica["state"] == "ready" else _BAD),
            Text(replica["breaker"], "" if replica["breaker"] == "closed" else _BAD),
            f"{replica['in_flight']}{slots}",
            _both(replica, "prefill"),
            _both(replica, "gap"),
        )
    return table


def _both(replica: Report, span: str) -> Text:
    """The median and the worst hundredth; marked where the other replicas are plainly faster."""
    found = (replica.get("spans") or {}).get(span) or {}
    if not found.get("p50_s"):
        return Text("–")
    said = f"{_span(found['p50_s'])}/{_span(found['p99_s'])}"
    return Text(f"{said} lags", _BAD) if span in (replica.get("lags") or ()) else Text(said)


def _counts(model: Report) -> Text:
    waiting: dict[str, int] = {}
    for tier in model["tiers"]:
        for priority, count in (tier.get("waiting_by_priority") or {}).items():
            waiting[priority] = waiting.get(priority, 0) + count
    sheds = model.get("sheds_60s") or {}
    return Text.assemble(
        f"waiting {_listed(waiting)}; last minute: {model.get('answers_60s', 0)} answers; lower tier because: "
        f"{_listed(model.get('degraded_60s') or {})}; left out of answers: "
        f"{_listed(model.get('given_up_60s') or {})}; refused: ",
        (_listed(sheds), _BAD if sheds else ""),
        f"; broken streams: {_listed(model.get('streams_60s') or {})}",
        *(_money(tier) for tier in model["tiers"]),
    )


def _money(tier: Report) -> str:
    """What is left of a paid tier's budget."""
    budget = tier.get("budget")
    if not budget:
        return ""
    left = "spent" if budget["is_spent"] else f"{budget['left']:.3g} left"
    left += ", too little for the latest request," if budget.get("is_short") else ""
    return f"; money for {tier['name']}: {left} of {budget['amount']:g} per {budget['per']}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


def _store(report: Report) -> Text:
    store = report.get("state_store") or {}
    if store.get("available"):
        return Text(f"state store: {store.get('url')}, available; sessions: {report.get('sessions', 0)}")
    since = f" since {_clock(store['since'])}" if store.get("since") else ""
    return Text(f"state store: {store.get('url')}, not available{since}; requests go on without it", _BAD)


def _events(report: Report) -> Iterator[Text]:
    for event in list(report.get("events") or [])[:EVENTS]:
        times = f" ({event['count']} times)" if event["count"] > 1 else ""
        style = "bold" if event["kind"] == "ladder" else ""
        yield Text.assemble((f"{_clock(event['last_at'])}  ", "dim"), (event["text"] + times, style))


def _clock(unix: float) -> str:
    return f"{datetime.fromtimestamp(unix):%H:%M:%S}"


def _span(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


# keeping it current


class StatusReader:
    """Reads `/status` over one kept connection, so that one worker of several is followed."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url)
        self._path = parts.path.rstrip("/") + "/status"
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        host = parts.hostname or ""
        self._connection = (
            HTTPSConnection(host, parts.port, timeout=TIMEOUT_S, context=client_context())
            if parts.scheme == "https"
            else HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
        )

    def read(self) -> Report:
        """Raises StatusUnavailable."""
        try:
            self._connection.request("GET", self._path, headers=self._headers)
            answer = self._connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise StatusUnavailable(f"it answered {answer.status}")
            report: Report = json.loads(body)
        except (OSError, HTTPException, ValueError) as error:
            self._connection.close()
            raise StatusUnavailable(str(error) or type(error).__name__) from error
        return report

    def close(self) -> None:
        self._connection.close()


class _Keys:
    """Keys as they are pressed, where standard input is a terminal."""

    def __enter__(self) -> Self:
        self._file = sys.stdin.fileno() if sys.stdin.isatty() else None
        if self._file is not None:
            self._before = termios.tcgetattr(self._file)
            tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def is_quit_within(self, seconds: float) -> bool:
        """Waits that long, or until `q` is pressed."""
        until = time.monotonic() + seconds
        if self._file is None:
            time.sleep(seconds)
            return False
        while (left := until - time.monotonic()) > 0:
            if select.select([self._file], [], [], left)[0]:
                pressed = os.read(self._file, 64).lower()
                if b"q" in pressed or not pressed:
                    return True
        return False


def watch(url: str, key: str | None = None, console: Console | None = None) -> None:
    """Shows the gateway until `q` or Ctrl-C. Where standard output is no terminal: once.

    Raises:
        StatusUnavailable: nothing answers there at the start; later that is shown.
    """
    console = console or Console()
    report: Report = fetch_status(url, key)
    if not console.is_terminal:
        console.print(frame(url, report, console.width))
        return
    with (
        _ends_on_interrupt(),
        _Keys() as keys,
        closing(StatusReader(url, key)) as reader,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        _follow(url, reader, report, console, keys, live)


@contextmanager
def _ends_on_interrupt() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        return


def _follow(
    url: str, reader: StatusReader, report: Report, console: Console, keys: _Keys, live: Live
) -> None:
    lost, seen_at = "", time.monotonic()
    while True:
        live.update(frame(url, report, console.width, lost), refresh=True)
        if keys.is_quit_within(EVERY_S):
            return
        try:
            newer = reader.read()
        except StatusUnavailable as error:
            lost = str(error)
            continue
        if _is_same(report, newer) or time.monotonic() - seen_at > SAME_GATEWAY_S:
            report, lost, seen_at = newer, "", time.monotonic()


def _is_same(report: Report, newer: Report) -> bool:
    """Whether the same gateway answered."""
    one, other = report.get("gateway") or {}, newer.get("gateway") or {}
    return one.get("id") == other.get("id")
