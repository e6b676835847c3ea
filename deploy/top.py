"""A running gateway in a terminal, live: who serves, what is given up and why, and what happened.

It shows what the page at `/` shows. `frame` is one picture as a pure function; the rest keeps it current.
"""

import json
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import pairwise
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from deploy.status_view import TIMEOUT_S, StatusUnavailable, client_context, fetch_status
from deploy.status_words import (
    Report,
    by_urgency,
    clock,
    config_lines,
    held,
    listed,
    minute,
    share_of_minute,
    since,
    store_text,
    waiting_by_priority,
)
from gateway.reason_words import in_words

EVERY_S = 1.0
SAME_GATEWAY_S = 5.0
"""Behind a balancer each answer may be another gateway's: one is shown for as long as it answers this often."""
EVENTS = 20
LEAST_EVENTS = 4
"""Lines that what happened keeps in a low terminal."""
WIDE = 110
"""Columns from which on a replica's tier, zone and breaker have columns of their own."""
SLIM = 56
"""Columns below which a tier's line leaves out what `graceway status` tells, so that its name can be read."""
CUT = "(the terminal is too low for all: the rest is in a higher one, in `graceway status`, and on the page)"
_LEVELS = {
    "best": ("OK", "black on green"),
    "reduced": ("REDUCED", "black on yellow"),
    "degraded": ("DEGRADED", "black on bright_yellow"),
    "down": ("DOWN", "bold white on red"),
}
_BARS = " ▁▂▃▄▅▆▇█"
_TIER_COLOURS = ("bright_blue", "yellow", "magenta", "white", "cyan")
_BAD = "bold red"


def frame(
    url: str, report: Report, width: int = 100, lost: str = "", height: int | None = None
) -> RenderableType:
    """One picture of a gateway's `/status`, for a terminal of this width. `lost` says why there is none newer.

    With a `height` it leaves out what matters least until it fits: the tables of models that want for nothing, then those
    of the others. What happened keeps some lines of what is left.
    """
    models = by_urgency(report["models"])
    ill = [entry for entry in models if (entry[1].get("standing") or {}).get("level") != "best"]
    is_live = height is not None
    for shown in (models, ill, []) if height else (models,):
        picture = Group(*_parts(url, report, width, lost, models, shown, is_live))
        if height is None or _lines(picture, width) <= height - LEAST_EVENTS:
            break
    cut = [Text(CUT, "dim")] if len(shown) < len(models) else []
    room = 10_000 if height is None else height - _lines(Group(picture, *cut), width) - 2
    head = Text("\nWhat happened, newest first", style="bold")
    return Group(picture, head, *_events(report, room, width), *cut)


def _parts(
    url: str,
    report: Report,
    width: int,
    lost: str,
    models: Sequence[tuple[str, Report]],
    shown: Sequence[tuple[str, Report]],
    is_live: bool,
) -> Iterator[RenderableType]:
    """All but what happened: first how everything stands, the worst first."""
    yield _head(url, report, lost, is_live)
    yield Text()
    for name, model in models:
        yield from _standing(name, model, _now(report))
    yield _store(report)
    yield from (Text(line, _BAD if is_bad else "yellow") for line, is_bad in config_lines(report))
    for name, model in shown:
        yield Text(f"\n{name}", "bold")
        yield _tiers(model, width)
        if replicas := _replicas(model, width):
            yield replicas
        yield _counts(model)


def _lines(picture: RenderableType, width: int) -> int:
    return len(Console(width=width).render_lines(picture, pad=False))


def _now(report: Report) -> float:
    return float(report.get("now") or 0.0)


def _head(url: str, report: Report, lost: str, is_live: bool) -> Text:
    if lost:
        return Text(f" NO ANSWER {lost}. Below is from then. ", "bold white on red")
    state = "draining" if report.get("draining") else "ready" if report.get("ready") else "not ready"
    at = clock(_now(report), _now(report))
    hint = ("q or Ctrl-C ends", "dim") if is_live else ""
    return Text.assemble((url, "bold"), f"  {state}  as of {at}  ", hint)


def _standing(name: str, model: Report, now: float) -> Iterator[Text]:
    standing = model.get("standing") or {}
    label, style = _LEVELS.get(standing.get("level", ""), ("?", "reverse"))
    said = standing.get("text") or name
    yield Text.assemble((f" {label} ", style), " ", (said + since(standing, now), "bold"))
    if cost := standing.get("cost"):
        yield Text(f"  {cost}")


def _tiers(model: Report, width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    columns, is_slim = min(60, width - 68), width < SLIM
    table.add_column("Tier", style="bold", overflow="fold", min_width=12)
    for head in ("1 min", "TTFT p99") if is_slim else ("Quality", "1 min", "1 h", "TTFT p99", "Waiting"):
        table.add_column(head, justify="right", no_wrap=True)
    if columns >= 10:
        table.add_column("Last hour", no_wrap=True)
    hour = model.get("shares_1h") or {"tiers": {}, "sheds": {}}
    all_counts = [*hour["tiers"].values(), *hour["sheds"].values()]
    totals = [sum(column) for column in zip(*all_counts, strict=True)]
    for place, tier in enumerate(model["tiers"]):
        counts = hour["tiers"].get(tier["name"], [])
        colour = _TIER_COLOURS[min(place, len(_TIER_COLOURS) - 1)]
        name = Text(f"{place + 1}. {tier['name']}")
        if not tier.get("serving"):
            name.append(" can't serve", _BAD)
        elif said := held(tier):
            name.append(f" {said}", _BAD)
        if tier.get("proven") is False:
            name.append(" unproven", "yellow")
        minute_share = f"{share_of_minute(tier, model):.0%}"
        hour_share = f"{sum(counts) / sum(totals):.0%}" if sum(totals) else "–"
        ttft = _ttft(tier.get("ttft_p99_s"), tier.get("slo_ttft_s"))
        waiting = str(tier.get("waiting") or 0)
        full = (f"{tier['quality']:g}", minute_share, hour_share, ttft, waiting)
        cells = (minute_share, ttft) if is_slim else full
        bars = [Text(_spark(counts, totals, columns), colour)] if columns >= 10 else []
        table.add_row(name, *cells, *bars)
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


def _replicas(model: Report, width: int) -> Table | None:
    """A line each; in a narrow terminal below their tiers' names, so that addresses and reasons stay whole."""
    if not any(tier.get("replicas") for tier in model["tiers"]):
        return None
    is_wide = width >= WIDE
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("Replica", overflow="fold", min_width=min(_longest_name(model), width // 2))
    for head in ("Tier", "Zone") if is_wide else ():
        table.add_column(head, overflow="fold")
    table.add_column("State", overflow="fold")
    if is_wide:
        table.add_column("Breaker")
    for head in ("In flight", "TTFT p50/p99", "Gap p50/p99")[: 1 if width < SLIM else 3]:
        table.add_column(head, no_wrap=is_wide)
    for tier in model["tiers"]:
        for place, replica in enumerate(tier.get("replicas") or []):
            if not is_wide and not place:
                table.add_row(Text(tier["name"], "dim"))
            table.add_row(*list(_cells(tier, replica, is_wide))[: len(table.columns)])
    return table


def _longest_name(model: Report) -> int:
    return max(len(r["replica"]) for tier in model["tiers"] for r in tier.get("replicas") or ())


def _cells(tier: Report, replica: Report, is_wide: bool) -> Iterator[Text]:
    where = Text(", ".join(part for part in (replica.get("zone"), replica.get("mig_slice")) if part))
    state, breaker = _state(replica), replica["breaker"]
    shown = Text(breaker, "" if breaker == "closed" else _BAD)
    slots = f" of {replica['slots']}" if replica.get("slots") else ""
    yield Text(replica["replica"])
    if is_wide:
        yield from (Text(tier["name"]), where, state, shown)
    else:
        yield state if breaker == "closed" else Text.assemble(state, ", breaker ", shown)
    yield Text(f"{replica['in_flight']}{slots}")
    yield _both(replica, "prefill")
    yield _both(replica, "gap")


def _state(replica: Report) -> Text:
    reason = f" ({in_words(replica['reason'])})" if replica.get("reason") else ""
    if replica.get("stands_by"):
        return Text("stands by")
    return Text(replica["state"] + reason, "" if replica["state"] == "ready" else _BAD)


def _both(replica: Report, span: str) -> Text:
    """The median and the worst hundredth; marked where the other replicas are plainly faster."""
    found = (replica.get("spans") or {}).get(span) or {}
    if not found.get("p50_s"):
        return Text("–")
    low, high = _span(found["p50_s"]), _span(found["p99_s"])
    said = f"{low.split()[0] if low.split()[1] == high.split()[1] else low}/{high}"
    return Text(f"{said} lags", _BAD) if span in (replica.get("lags") or ()) else Text(said)


def _counts(model: Report) -> Text:
    parts = [(f"waiting {listed(waiting_by_priority(model))}", False), *minute(model)]
    said = Text()
    for text, is_bad in parts:
        said.append("; " if said else "").append(text, _BAD if is_bad else "")
    return said


def _store(report: Report) -> Text:
    if (report.get("state_store") or {}).get("available"):
        return Text(f"{store_text(report)}; sessions: {report.get('sessions', 0)}")
    return Text(store_text(report), _BAD)


def _events(report: Report, room: int, width: int) -> Iterator[Text]:
    """As many as there are lines for."""
    for event in list(report.get("events") or [])[:EVENTS]:
        times = f" ({event['count']} times)" if event["count"] > 1 else ""
        style = "bold" if event["kind"] == "ladder" else ""
        at = clock(event["last_at"], _now(report))
        line = Text.assemble((f"{at}  ", "dim"), (event["text"] + times, style))
        room -= _lines(line, width)
        if room < 0:
            return
        yield line


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
        _ends_in_order(),
        _Keys() as keys,
        closing(StatusReader(url, key)) as reader,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        _follow(url, reader, report, console, keys, live)


@contextmanager
def _ends_in_order() -> Iterator[None]:
    """Ctrl-C ends it, and SIGTERM does; either way the terminal is left as it was."""
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def _follow(
    url: str, reader: StatusReader, report: Report, console: Console, keys: _Keys, live: Live
) -> None:
    lost, seen_at = "", time.monotonic()
    while True:
        live.update(frame(url, report, console.width, lost, console.height), refresh=True)
        if keys.is_quit_within(EVERY_S):
            return
        try:
            newer = reader.read()
        except StatusUnavailable as error:
            lost = f"since {clock(_now(report), time.time())}: {error}"
            continue
        if _is_same(report, newer) or time.monotonic() - seen_at > SAME_GATEWAY_S:
            report, lost, seen_at = newer, "", time.monotonic()


def _is_same(report: Report, newer: Report) -> bool:
    """Whether the same gateway answered."""
    one, other = report.get("gateway") or {}, newer.get("gateway") or {}
    return one.get("id") == other.get("id")
