"""The report as one page that needs nothing else: tables, plots, the machine, the commands."""

from collections.abc import Iterable, Sequence
from html import escape

from loadtests.report_plots import bars, dots, lines
from loadtests.report_runs import Runs

_STYLE = """\
body { font: 15px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #111 }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px }
td, th { border: 1px solid #ccc; padding: 2px 8px; text-align: right }
td:first-child, th:first-child, td:last-child { text-align: left }
svg { display: block; margin: 1rem 0; max-width: 100% } code { background: #f3f4f6 } .missed { color: #b91c1c }
"""
GAP_MOST_S = 0.5


def page(runs: Runs) -> str:
    """The whole of it."""
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Graceway, measured</title><style>{_STYLE}</style>',
        "<h1>Graceway, measured</h1>",
        "<p>Simulated replicas answer with text that is known beforehand, so every token of every answer was compared. "
        "All fronts stood before the same kind of fleet, in the same run, on the same machine.</p>",
        _overhead(runs),
        _faults(runs),
        _kill(runs),
        _overload(runs),
        _kills(runs),
        "<h2>Machine and versions</h2>",
        _table(("", ""), runs.machine.items()),
        "<h2>Made by</h2>",
        *(f"<p><code>{escape(command)}</code></p>" for command in runs.commands),
        "<h2>Configs of the fronts</h2>",
        *(f"<h3>{escape(name)}</h3><pre>{escape(text)}</pre>" for name, text in runs.configs.items()),
        "</html>",
    ]
    return "\n".join(parts)


def _overhead(runs: Runs) -> str:
    head = (
        "front",
        "p50 ms",
        "p99 ms",
        "added p50 ms",
        "requests/s",
        "chunks/s",
        "CPU µs/request",
        "CPU µs/chunk",
    )
    rows = [
        (
            c.front, f"{c.p50_ms:.2f}", f"{c.p99_ms:.2f}", f"{c.added_p50_ms:.2f}", f"{c.requests_per_s:.0f}",
            f"{c.chunks_per_s:.0f}", f"{c.cpu_us_per_request:.0f}", f"{c.cpu_us_per_paced_chunk:.1f}",
        )
        for c in runs.costs
    ]  # fmt: skip
    return "<h2>What it costs</h2><p>Medians over interleaved rounds.</p>" + _table(head, rows)


def _faults(runs: Runs) -> str:
    head = (
        "fault",
        "front",
        "asked",
        "whole and in time",
        "whole",
        "longest gap s",
        "lost",
        "twice",
        "wrong",
        "silent",
        "verdict",
    )
    rows = [
        (
            r.fault, front, r.asked, f"{r.in_time:.1%}", f"{r.whole:.1%}", f"{r.max_gap_s:.2f}", r.lost, r.repeated,
            r.wrong, r.silent_ends, "; ".join(r.misses) or "kept",
        )
        for front, results in runs.faults.items()
        for r in results
    ]  # fmt: skip
    about = "<p>One of two replicas fails under steady load. Targets are Graceway's; the others are beside to compare.</p>"
    return (
        "<h2>What clients notice of faults</h2>"
        + about
        + _table(head, sorted(rows, key=lambda row: str(row[0])))
    )


def _kill(runs: Runs) -> str:
    plot = dots(
        "Gap before each token while one of two replicas is killed at 5 s",
        "seconds", f"gap, s (above {GAP_MOST_S:g} at the top)", runs.gaps, y_most=GAP_MOST_S,
    )  # fmt: skip
    cut = ", ".join(f"{front}: {count}" for front, count in runs.cut_streams.items())
    return f"<h2>Around a kill</h2>{plot}<p>Answers that did not come whole: {escape(cut)}.</p>"


def _overload(runs: Runs) -> str:
    head = (
        "load",
        "front",
        "asked",
        "in time",
        "critical in time",
        "degraded",
        "refused",
        "goodput",
        "refusal p99 ms",
        "verdict",
    )
    rows = [
        (
            r.load, front, r.asked, f"{r.in_time:.1%}", f"{r.critical_in_time:.2%}", f"{r.degraded:.1%}", r.refused,
            f"{r.goodput:.0%}", f"{r.refusal_p99_ms:.1f}", "; ".join(r.misses) or "kept",
        )
        for front, results in runs.overload.items()
        for r in results
    ]  # fmt: skip
    goodput = {
        f"{k:g}×": {front: by_k[k] for front, by_k in runs.goodput.items() if k in by_k}
        for k in sorted({k for by_k in runs.goodput.values() for k in by_k})
    }
    shares = {
        r.load: list(enumerate(r.degraded_by_second))
        for r in runs.overload.get("graceway", ())
        if r.load in ("spike", "ramp")
    }
    plots = bars("Goodput against load, without a lower tier", "of capacity", goodput, y_most=1.1)
    plots += lines("Share of the lower tier over time", "seconds", "share", shares, y_most=1.0)
    return "<h2>Overload</h2>" + plots + _table(head, rows)


def _kills(runs: Runs) -> str:
    lines_of = "".join(
        f"<p>{escape(front)}: {escape(report.line())}</p>" for front, report in runs.kills.items()
    )
    return "<h2>Kills at random tokens</h2>" + lines_of


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    shown = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{shown}</tr>{body}</table>"
