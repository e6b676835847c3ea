"""A short document as data, and its two forms: Markdown, and one HTML page that needs nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#2f6fde", "#d97a1f", "#8a4fbf", "#7a7a7a", "#1f9e8f", "#b03060")
BARS_HIGH = 100


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


Block = Heading | Text | Items | Table | Shares


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
    else:
        yield from _bars(block)


def _bars(shares: Shares) -> Iterator[str]:
    keys = [
        f'<span><i style="background:{_colour(n)}"></i>{escape(name)}</span>'
        for n, (name, _) in enumerate(shares.series)
    ]
    yield f'<p class="key">{"".join(keys)}</p>'
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
