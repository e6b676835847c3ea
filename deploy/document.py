"""A short document as data, and its two forms: Markdown, and one HTML page that needs nothing else."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#2f6fde", "#d97a1f", "#8a4fbf", "#7a7a7a", "#1f9e8f", "#b03060")
BARS_HIGH, STEPS_WIDE = 100, 1000


@dataclass(frozen=True, slots=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Items:
    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Shares:
    """Stacked bars over time: a series has one count a column. Only HTML draws them; a table should say the same."""

    columns: Sequence[str]
    series: Sequence[tuple[str, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Steps:
    """Counts that hold from one moment to the next change, each a line. Only HTML draws them."""

    until: float
    """Where the last step of each ends."""
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    """(moment, count), the first one at 0."""
    unit: str = "s"


Block = Heading | Text | Items | Table | Shares | Steps


def as_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(text for block in blocks if (text := _markdown(block))) + "\n"


def _markdown(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {block.text}"
    if isinstance(block, Text):
        return block.text
    if isinstance(block, Items):
        return "\n".join(f"- {item}" for item in block.items)
    if isinstance(block, Table):
        rows = [block.head, ["---"] * len(block.head), *block.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
    return ""


def as_html(title: str, blocks: Sequence[Block]) -> str:
    body = "\n".join(line for block in blocks for line in _html(block))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;"
    "background:#fff}table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}"
    "td,th{padding:.25rem .8rem;border-bottom:1px solid #ddd;text-align:left}svg{width:100%;height:9rem}"
    ".key span{margin-right:1.2rem}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.4em}"
    "@media(prefers-color-scheme:dark){body{color:#e6e6e6;background:#16181c}td,th{border-color:#3a3d44}}"
)


def _html(block: Block) -> Iterator[str]:
    if isinstance(block, Heading):
        yield f"<h{block.level}>{escape(block.text)}</h{block.level}>"
    elif isinstance(block, Text):
        yield f"<p>{escape(block.text)}</p>"
    elif isinstance(block, Items):
        yield "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block.items) + "</ul>"
    elif isinstance(block, Table):
        yield "<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in block.head) + "</tr>"
        for row in block.rows:
            yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        yield "</table>"
    elif isinstance(block, Steps):
        yield from _steps(block)
    else:
        yield from _bars(block)


def _key(names: Iterable[str]) -> str:
    spans = (
        f'<span><i style="background:{_colour(number)}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )
    return f'<p class="key">{"".join(spans)}</p>'


def _steps(steps: Steps) -> Iterator[str]:
    most = max((count for _, points in steps.series for _, count in points), default=0.0) or 1.0
    yield _key(name for name, _ in steps.series)
    yield (
        f'<svg viewBox="0 0 {STEPS_WIDE} {BARS_HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="At most {most:g}, over {steps.until:g} {escape(steps.unit)}">'
    )
    for number, (name, points) in enumerate(steps.series):
        yield (
            f'<polyline points="{_outline(points, steps.until, most)}" fill="none" stroke="{_colour(number)}" '
            f'stroke-width="2" vector-effect="non-scaling-stroke"><title>{escape(name)}</title></polyline>'
        )
    yield f"</svg><p>0 to {most:g} upwards, 0 to {steps.until:g} {escape(steps.unit)} to the right</p>"


def _outline(points: Sequence[tuple[float, float]], until: float, most: float) -> str:
    corners: list[str] = []
    ends = [moment for moment, _ in points[1:]] + [until]
    for (moment, count), end in zip(points, ends, strict=True):
        high = BARS_HIGH * (1 - count / most / 1.05)
        corners += [f"{STEPS_WIDE * at / until:.1f},{high:.1f}" for at in (moment, end)]
    return " ".join(corners)


def _bars(shares: Shares) -> Iterator[str]:
    yield _key(name for name, _ in shares.series)
    yield (
        f'<svg viewBox="0 0 {len(shares.columns)} {BARS_HIGH}" preserveAspectRatio="none" role="img" '
        'aria-label="Shares over time">'
    )
    for column, label in enumerate(shares.columns):
        total, top = sum(counts[column] for _, counts in shares.series), 0.0
        for number, (name, counts) in enumerate(shares.series):
            if not counts[column]:
                continue
            height = BARS_HIGH * counts[column] / total
            yield (
                f'<rect x="{column}" y="{top:.2f}" width="0.92" height="{height:.2f}" fill="{_colour(number)}">'
                f"<title>{escape(f'{label}: {name} {counts[column]} of {total}')}</title></rect>"
            )
            top += height
    yield "</svg>"


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
