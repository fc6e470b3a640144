"""Plots as SVG, written by hand: bars, lines, and percentiles on the axis that HdrHistogram made usual."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 760
_OURS, _PEER = "#1b6ca8", "#c2410c"
_COLOURS = ("#1b6ca8", "#c2410c", "#15803d", "#7c3aed", "#b45309", "#0e7490", "#be185d", "#4d7c0f", "#475569")
_STYLE = (
    "<style>text{font:12px system-ui,sans-serif;fill:#222}.t{font-weight:600;font-size:13px}"
    ".g{stroke:#ddd;stroke-width:1}.s{stroke:#222;stroke-width:1}</style>"
)

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Bar:
    """One contestant's median and its spread."""

    label: str
    value: float
    low: float
    high: float
    is_peer: bool = False


def figure(value: float) -> str:
    """A number as short as it can be read."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def bars(title: str, shown: Sequence[Bar]) -> str:
    """Horizontal bars, the longest first; the thin line is from the least to the greatest round."""
    rows = sorted(shown, key=lambda one: -one.value)
    most = max((one.high for one in rows), default=1) or 1
    left, room, step = 290, _WIDTH - 290 - 80, 24
    parts = [f'<text class="t" x="8" y="18">{escape(title)}</text>']
    for number, one in enumerate(rows):
        y = 32 + number * step
        width = one.value / most * room
        colour = _PEER if one.is_peer else _OURS
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(one.label)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="17" fill="{colour}"/>')
        low, high = left + one.low / most * room, left + one.high / most * room
        parts.append(f'<line class="s" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 8.5}" y2="{y + 8.5}"/>')
        parts.append(f'<text x="{max(left + width, high) + 6:.1f}" y="{y + 13}">{figure(one.value)}</text>')
    return _svg(40 + len(rows) * step, parts)


def lines(title: str, series: Mapping[str, Points], x_name: str, y_name: str) -> str:
    """Lines over logarithmic axes."""
    scaled = {
        name: [(math.log10(x), math.log10(y), x) for x, y in sorted(points) if x > 0 and y > 0]
        for name, points in series.items()
    }
    ticks = sorted({(x, figure(raw)) for points in scaled.values() for x, _, raw in points})
    return _chart(title, {name: [(x, y) for x, y, _ in each] for name, each in scaled.items()}, ticks, x_name, y_name)


def percentile_lines(title: str, series: Mapping[str, Points], y_name: str) -> str:
    """Latency over percentiles, stretched towards the end: every step to the right is a tenth of what is left."""
    scaled = {
        name: [(_tail(cut), math.log10(value)) for cut, value in points if value > 0] for name, points in series.items()
    }
    ticks = [(_tail(cut), f"{cut:g} %") for cut in (0.0, 50.0, 90.0, 99.0, 99.9)]
    return _chart(title, scaled, ticks, "percentile", y_name)


def _tail(cut: float) -> float:
    return -math.log10(max(1 - cut / 100, 1e-4))


def _chart(
    title: str, series: Mapping[str, Points], x_ticks: Sequence[tuple[float, str]], x_name: str, y_name: str
) -> str:
    """Draw points whose coordinates are scaled already; y is a power of ten."""
    points = [point for each in series.values() for point in each]
    if not points:
        return ""
    left, top, width, height = 64, 30, _WIDTH - 64 - 250, 240
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = math.floor(min(y for _, y in points)), math.ceil(max(y for _, y in points))
    y_high = y_high if y_high > y_low else y_low + 1

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        return left + across * width, top + (y_high - y) / (y_high - y_low) * height

    parts = [f'<text class="t" x="8" y="18">{escape(title)}</text>']
    for power in range(y_low, y_high + 1):
        y = place(x_low, power)[1]
        parts.append(f'<line class="g" x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{figure(10.0**power)}</text>')
    for position, label in x_ticks:
        if x_low <= position <= x_high:
            x = place(position, y_low)[0]
            parts.append(f'<line class="g" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{top + height}"/>')
            parts.append(f'<text x="{x:.1f}" y="{top + height + 16}" text-anchor="middle">{escape(label)}</text>')
    parts.append(f'<text x="{left}" y="{top + height + 34}">{escape(x_name)}; {escape(y_name)}</text>')
    for number, (name, each) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in each))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = top + 10 + number * 18
        parts.append(f'<rect x="{left + width + 14}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{left + width + 30}" y="{y}">{escape(name)}</text>')
    return _svg(max(top + height + 46, top + 20 + len(series) * 18), parts)


def _svg(height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">'
    return f'{head}{_STYLE}<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
