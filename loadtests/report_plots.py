"""Plots as inline SVG: a page with them needs nothing else."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 280, 56, 34, 46, 120
COLORS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed")
Points = Sequence[tuple[float, float]]


class _Axes:
    """Where values come to lie."""

    def __init__(self, series: Mapping[str, Points], y_most: float | None) -> None:
        xs = [x for points in series.values() for x, _ in points] or [0.0, 1.0]
        ys = [y for points in series.values() for _, y in points] or [1.0]
        self.x_least, self.x_most = min(xs), max(max(xs), min(xs) + 1e-9)
        self.y_most = y_most or max(max(ys) * 1.1, 1e-9)

    def x(self, value: float) -> float:
        return LEFT + (value - self.x_least) / (self.x_most - self.x_least) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - min(value / self.y_most, 1.0) * (HEIGHT - BOTTOM - TOP)


def lines(title: str, x: str, y: str, series: Mapping[str, Points], y_most: float | None = None) -> str:
    """One line a series."""
    axes = _Axes(series, y_most)
    drawn = [
        f'<polyline fill="none" stroke="{color}" stroke-width="2" points="'
        + " ".join(f"{axes.x(px):.1f},{axes.y(py):.1f}" for px, py in points)
        + '"/>'
        for points, color in zip(series.values(), COLORS, strict=False)
    ]
    return _framed(title, x, y, axes, list(series), drawn)


def dots(title: str, x: str, y: str, series: Mapping[str, Points], y_most: float | None = None) -> str:
    """One dot a point; what lies above `y_most` is drawn at the top."""
    axes = _Axes(series, y_most)
    drawn = [
        f'<circle cx="{axes.x(px):.1f}" cy="{axes.y(py):.1f}" r="1.6" fill="{color}" fill-opacity="0.6"/>'
        for points, color in zip(series.values(), COLORS, strict=False)
        for px, py in points
    ]
    return _framed(title, x, y, axes, list(series), drawn)


def bars(title: str, y: str, groups: Mapping[str, Mapping[str, float]], y_most: float | None = None) -> str:
    """One group of bars a name, one bar a series in it."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    points = [(0.0, value) for group in groups.values() for value in group.values()]
    axes = _Axes({"all": points}, y_most)
    step = (WIDTH - LEFT - RIGHT) / max(len(groups), 1)
    wide = step * 0.8 / max(len(names), 1)
    drawn: list[str] = []
    for number, (label, group) in enumerate(groups.items()):
        begins = LEFT + number * step + step * 0.1
        drawn += [
            _bar(begins + names.index(name) * wide, wide, axes.y(value), COLORS[names.index(name)], value)
            for name, value in group.items()
        ]
        drawn.append(_text(begins + step * 0.4, HEIGHT - BOTTOM + 14, label, "middle"))
    return _framed(title, "", y, axes, names, drawn, has_x=False)


def _bar(x: float, width: float, top: float, color: str, value: float) -> str:
    height = HEIGHT - BOTTOM - top
    box = f'<rect x="{x:.1f}" y="{top:.1f}" width="{width * 0.92:.1f}" height="{height:.1f}" fill="{color}"/>'
    return box + _text(x + width * 0.46, top - 3, f"{value:.3g}", "middle")


def _framed(
    title: str,
    x: str,
    y: str,
    axes: _Axes,
    names: Sequence[str],
    drawn: Sequence[str],
    *,
    has_x: bool = True,
) -> str:
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{escape(title)}">',
        _text(LEFT, 14, title, "start", bold=True),
        f'<path d="M{LEFT} {TOP}V{floor}H{right}" fill="none" stroke="#555"/>',
        *(_tick(axes, share) for share in (0.0, 0.5, 1.0)),
        _text(LEFT, 30, y, "start"),
    ]
    if has_x:
        parts += [_text(LEFT, floor + 14, f"{axes.x_least:.4g}", "middle")]
        parts += [
            _text(right, floor + 14, f"{axes.x_most:.4g}", "middle"),
            _text((LEFT + right) / 2, HEIGHT - 6, x, "middle"),
        ]
    parts += drawn
    for number, (name, color) in enumerate(zip(names, COLORS, strict=False)):
        top = TOP + 16 * number
        parts.append(f'<rect x="{right + 10}" y="{top}" width="10" height="10" fill="{color}"/>')
        parts.append(_text(right + 24, top + 9, name, "start"))
    return "\n".join([*parts, "</svg>"])


def _tick(axes: _Axes, share: float) -> str:
    value = axes.y_most * share
    return _text(LEFT - 6, axes.y(value) + 4, f"{value:.3g}", "end")


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" font-family="sans-serif" text-anchor="{anchor}"'
        f"{weight}>{escape(text)}</text>"
    )
