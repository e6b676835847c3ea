"""The report as one page that needs nothing else: tables, plots, the machine, the commands."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from html import escape

from loadtests.overhead import Cost
from loadtests.report_plots import dots, lines
from loadtests.report_runs import Runs

_STYLE = """\
body { font: 15px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #111 }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px }
td, th { border: 1px solid #ccc; padding: 2px 8px; text-align: right }
td:first-child, th:first-child, td:last-child { text-align: left }
svg { display: block; margin: 1rem 0; max-width: 100% } code { background: #f3f4f6 } .missed { color: #b91c1c }
pre { background: #f3f4f6; padding: .5rem; overflow: auto; font-size: 12px }
"""
GAP_MOST_S = 0.5
PLOTTED = ("spike", "ramp")
"""The loads whose tiers are drawn over time."""


def page(runs: Runs) -> str:
    """The whole of it."""
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Graceway, measured</title><style>{_STYLE}</style>',
        "<h1>Graceway, measured</h1>",
        "<p>Simulated replicas answer with text that is known beforehand, so every token of every answer was compared. "
        "All fronts stood before the same kind of fleet, in the same run, on the same machine. Brackets hold the spread: "
        "the least and the most over rounds, or of a share the range in which the true one lies with 95 %.</p>",
        _failures(runs),
        *(
            _section(runs, name, show)
            for name, show in _SECTIONS.items()
            if not runs.plan or name in runs.plan
        ),
        "<h2>Machine and versions</h2>",
        _table(("", ""), runs.machine.items()),
        "<h2>Made by</h2>",
        *(f"<p><code>{escape(command)}</code></p>" for command in runs.commands),
        _table(("section", "planned, min", "took, min"), _times(runs)),
        "<h2>Configs of the fronts</h2>",
        *(f"<h3>{escape(name)}</h3><pre>{escape(text)}</pre>" for name, text in runs.configs.items()),
        "</html>",
    ]
    return "\n".join(parts)


def _failures(runs: Runs) -> str:
    """What is missing, and why: before all else."""
    told = (f"{escape(name)}: {escape(why)}" for name, why in runs.failures.items())
    return "".join(f'<p class="missed">Missing: {line}</p>' for line in told)


def _section(runs: Runs, name: str, show: Callable[[Runs], str]) -> str:
    is_to_come = bool(runs.plan) and name not in runs.took_s
    return show(runs) + ("<p>Not made yet.</p>" if is_to_come else "")


def _times(runs: Runs) -> list[tuple[str, str, str]]:
    return [
        (name, f"{planned:g}", f"{runs.took_s[name] / 60:.1f}" if name in runs.took_s else "")
        for name, planned in runs.plan.items()
    ]


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
        "CPU µs/chunk alone",
    )
    rows = [
        (
            c.front, _ranged(c, "p50_ms", ".2f"), _ranged(c, "p99_ms", ".2f"), f"{c.added_p50_ms:.2f}",
            _ranged(c, "requests_per_s", ".0f"), _ranged(c, "chunks_per_s", ".0f"),
            _ranged(c, "cpu_us_per_request", ".0f"), _ranged(c, "cpu_us_per_chunk", ".1f"),
            _ranged(c, "cpu_us_per_paced_chunk", ".1f"),
        )
        for c in runs.costs
    ]  # fmt: skip
    told = (
        "Medians over interleaved rounds; what is added to one request at a time, over turns of some requests. A chunk of a "
        "flood comes with others in one read, one alone at its model's pace."
    )
    return f"<h2>What it costs</h2><p>{told}</p>" + _table(head, rows)


def _ranged(cost: Cost, name: str, form: str) -> str:
    shown = format(getattr(cost, name), form)
    if name not in cost.ranges:
        return shown
    least, most = cost.ranges[name]
    return f"{shown} [{least:{form}}–{most:{form}}]"


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
            r.fault, front, r.asked, _share(r.in_time, r.asked), f"{r.whole:.1%}", f"{r.max_gap_s:.2f}", r.lost, r.repeated,
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
        + _kill(runs)
    )


def _share(share: float, count: int) -> str:
    """With the range in which the true share lies with 95 % (Wilson's score interval)."""
    if not count:
        return "–"
    z = 1.96
    middle = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    least, most = ((middle + sign * spread) / (1 + z * z / count) for sign in (-1, 1))
    return f"{share:.1%} [{max(least, 0):.1%}–{min(most, 1):.1%}]"


def _kill(runs: Runs) -> str:
    plot = dots(
        "Gap before each token while one of two replicas is killed at 3 s",
        "seconds", f"gap, s (above {GAP_MOST_S:g} at the top)", runs.gaps, y_most=GAP_MOST_S,
    )  # fmt: skip
    cut = ", ".join(f"{front}: {count}" for front, count in runs.cut_streams.items())
    return f"<h3>Around a kill</h3>{plot}<p>Answers that did not come whole: {escape(cut)}.</p>"


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
            r.load, front, r.asked, _share(r.in_time, r.asked), f"{r.critical_in_time:.2%}", f"{r.degraded:.1%}", r.refused,
            f"{r.goodput:.0%}", f"{r.refusal_p99_ms:.1f}", "; ".join(r.misses) or "kept",
        )
        for front, results in runs.overload.items()
        for r in results
    ]  # fmt: skip
    return "<h2>Overload</h2>" + _goodput(runs) + _tiers(runs) + _table(head, rows)


def _goodput(runs: Runs) -> str:
    curves = {front: sorted(by_k.items()) for front, by_k in runs.goodput.items()}
    loads = sorted({k for by_k in runs.goodput.values() for k in by_k})
    rows = [
        (front, *(f"{by_k[k]:.0%}" if k in by_k else "–" for k in loads))
        for front, by_k in runs.goodput.items()
    ]
    plot = lines(
        "Goodput against load, without a lower tier", "times the capacity", "of capacity", curves, 1.1
    )
    return plot + _table(("goodput at", *(f"{k:g}×" for k in loads)), rows)


def _tiers(runs: Runs) -> str:
    return "".join(
        lines(
            f"Share of each tier over time: {r.load}",
            "seconds",
            "share",
            {tier: list(enumerate(shares)) for tier, shares in r.shares_by_second.items()},
            y_most=1.0,
        )
        for r in runs.overload.get("graceway", ())
        if r.load in PLOTTED
    )


def _kills(runs: Runs) -> str:
    lines_of = "".join(
        f"<p>{escape(front)}: {escape(report.line())}</p>" for front, report in runs.kills.items()
    )
    return "<h2>Kills at random tokens</h2>" + lines_of


def _store(runs: Runs) -> str:
    head = (
        "store is", "asked", "failed", "p99 ms, no session", "p99 ms, session", "more, middle of rounds", "turns kept locally",
    )  # fmt: skip
    rows = [
        (
            r.name, r.asked, r.failed, f"{r.plain_s * 1e3:.1f}", f"{r.session_s * 1e3:.1f}", f"{r.more_s * 1e3:+.1f}",
            r.local,
        )
        for r in runs.store
    ]  # fmt: skip
    about = (
        "<p>Time to the first token while the state store fails, from the moment the first call has waited for it; every other "
        "request belongs to a session.</p>"
    )
    return "<h2>When the state store fails</h2>" + about + _table(head, rows)


def _restored(runs: Runs) -> str:
    found = runs.restored.get("lengths", [])
    ways = ("computed", "restored", "warm")
    curves = {way: [(one["tokens"], statistics.median(one[way])) for one in found] for way in ways if found}
    rows = [(one["tokens"], *(_seconds(one[way]) for way in ways)) for one in found]
    about = (
        "<p>Two real vLLM servers on the CPU: the prompt is new to both, restored from the blocks that the other one stored, "
        "or in the cache. Restoring pays where reading is quicker than computing: not a figure for a GPU.</p>"
    )
    plot = lines("Time to first token, restored against recomputed", "prompt tokens", "seconds", curves)
    head = ("prompt tokens", *(f"{way}, s" for way in ways))
    return "<h2>State: restored against recomputed</h2>" + about + plot + _table(head, rows) + _claims(
        (verdict["holds"], verdict["text"], "") for verdict in runs.restored.get("verdicts", [])
    )  # fmt: skip


def _seconds(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}–{max(values):.2f}]"


def _scaling(runs: Runs) -> str:
    head = ("trace", "scaler", "attainment", "worst", "replica-hours", "reversals")
    rows = [
        (
            r["trace"], r["scaler"], f"{r['attainment']:.2%}", f"{r['worst_attainment']:.2%}",
            f"{r['replica_hours']:.2f}", f"{r['reversals']:.1f}",
        )
        for r in runs.scaling.get("rows", [])
    ]  # fmt: skip
    about = "<p>The scaling policy in the simulator, beside Ray Serve's default and one that knows the future.</p>"
    return "<h2>Scaling, simulated</h2>" + about + _table(head, rows) + _claims(
        (claim["holds"], claim["text"], claim["seen"]) for claim in runs.scaling.get("claims", [])
    )  # fmt: skip


def _claims(claims: Iterable[tuple[bool, str, str]]) -> str:
    rows = [
        ("holds" if holds else "FAILS", f"{text} ({seen})" if seen else text) for holds, text, seen in claims
    ]
    return _table(("", "claim"), rows) if rows else ""


_SECTIONS: dict[str, Callable[[Runs], str]] = {
    "overhead": _overhead,
    "faults": _faults,
    "kills": _kills,
    "overload": _overload,
    "store": _store,
    "restored": _restored,
    "scaling": _scaling,
}


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    shown = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{shown}</tr>{body}</table>"
