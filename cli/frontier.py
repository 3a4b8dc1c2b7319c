"""The picture of a search: accuracy by size and by time of all networks that were tried, as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from megengine.cli.report import decibel
from megengine.core.text import counted
from megengine.quantization import Budget, Point, SearchResult

WIDTH, HEIGHT = 380, 240  # of a panel
LEFT, TOP, GAP = 62, 88, 70  # room before the panels, above them, and between them
TICKS = 5
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-size: 16px; font-weight: 600 }
.axis { font-weight: 600 }
.grid { stroke: #e4e4e4 }
.frame { fill: none; stroke: #999 }
.budget { stroke: #c0392b; stroke-dasharray: 5 4 }
.refused { fill: #c0392b; fill-opacity: 0.06 }
.front { fill: none; stroke: #1f77b4; stroke-width: 1.5; stroke-opacity: 0.6 }
.beaten { fill: #fff; stroke: #888 }
.kept { fill: #1f77b4; stroke: #fff }
.base { fill: #f39c12; stroke: #fff }
.best { fill: none; stroke: #111; stroke-width: 2 }
.paper { fill: #fff }
@media screen and (prefers-color-scheme: dark) {
text { fill: #e6e9ef } .paper { fill: #1b212b } .grid { stroke: #333b49 } .best { stroke: #fff }
.beaten { fill: #1b212b } .front { stroke: #6aa9e9 } .kept { fill: #6aa9e9; stroke: #1b212b } .base { stroke: #1b212b }
.budget { stroke: #f97066 } .refused { fill: #f97066; fill-opacity: 0.12 }
}
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """A measure of a network: its name, its value, the budget for it, and the most that it can be."""

    name: str
    value: Callable[[Point], float]
    budget: float | None
    most: float = math.inf


def picture(title: str, result: SearchResult, budget: Budget) -> str:
    """An SVG document with a panel for each pair of a cost and a measure of accuracy."""
    base = max(result.base.latency_ms, 1e-9)
    limit = None if budget.bytes is None else budget.bytes / 1e6
    costs = (
        Axis("megabytes of constants", lambda p: p.bytes / 1e6, limit),
        Axis("time (of the unchanged network)", lambda p: p.latency_ms / base, budget.latency),
    )
    agreement = None if budget.agreement is None else 100 * budget.agreement
    goods = (
        Axis("agreement %", lambda p: 100 * p.agreement, agreement, 100),
        Axis("SQNR dB", lambda p: p.sqnr_db, budget.sqnr_db),
    )
    panels = [
        f'<g transform="translate({LEFT + i * (WIDTH + GAP)},{TOP + j * (HEIGHT + GAP)})">{_panel(x, y, result)}</g>'
        for j, y in enumerate(goods)
        for i, x in enumerate(costs)
    ]
    width, height = LEFT + 2 * WIDTH + GAP + 24, TOP + 2 * HEIGHT + GAP + 50
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f'<style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>'
        f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>{_legend()}{"".join(panels)}</svg>\n'
    )


def _legend() -> str:
    marks = (("kept", "no other beats it"), ("beaten", "beaten"), ("base", "unchanged"), ("best", "best"))
    parts = [
        f'<circle class="{kind}" cx="{LEFT + 8 + 150 * i}" cy="48" r="{7 if kind == "best" else 5}"/>'
        f'<text x="{LEFT + 22 + 150 * i}" y="52">{words}</text>'
        for i, (kind, words) in enumerate(marks)
    ]
    at = LEFT + 150 * len(marks)
    line = f'<line class="budget" x1="{at}" x2="{at + 24}" y1="48" y2="48"/><text x="{at + 30}" y="52">budget</text>'
    return "".join(parts) + line


@dataclass(frozen=True, slots=True)
class _Scale:
    """Numbers of an axis as places from 0 to `length`; `ticks` are round numbers."""

    ticks: tuple[float, ...]
    length: float

    @classmethod
    def of(cls, axis: Axis, points: Sequence[Point], length: float) -> _Scale:
        values = [*map(axis.value, points), *([] if axis.budget is None else [axis.budget])]
        low, high = min(values), max(values)
        room = max((high - low) * 0.08, abs(high) * 0.01, 1e-6)
        step = _round_up((high - low + 2 * room) / TICKS)
        first = math.floor((low - room) / step)
        last = math.ceil(min(high + room, axis.most) / step - 1e-9)
        return cls(tuple(round(i * step, 9) for i in range(first, last + 1)), length)

    def __call__(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return round((min(max(value, low), high) - low) / (high - low) * self.length, 1)


def _round_up(step: float) -> float:
    """The next of 1, 2, 5, 10, ... times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= step * (1 - 1e-9))


def _panel(x: Axis, y: Axis, result: SearchResult) -> str:
    across = _Scale.of(x, result.points, WIDTH)
    up = _Scale.of(y, result.points, HEIGHT)
    parts = [_refused(x, y, across, up)]
    for tick in across.ticks:
        at = across(tick)
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="0" y2="{HEIGHT}"/>')
        parts.append(f'<text x="{at}" y="{HEIGHT + 16}" text-anchor="middle">{tick:g}</text>')
    for tick in up.ticks:
        at = HEIGHT - up(tick)
        parts.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{at}" y2="{at}"/>')
        parts.append(f'<text x="-6" y="{at + 4}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<rect class="frame" width="{WIDTH}" height="{HEIGHT}"/>')
    parts.append(f'<text class="axis" x="{WIDTH / 2}" y="{HEIGHT + 34}" text-anchor="middle">{x.name}</text>')
    parts.append(f'<text class="axis" x="0" y="-8">{y.name}</text>')
    front = _front(x, y, result.points)
    line = " ".join(f"{across(x.value(p))},{HEIGHT - up(y.value(p))}" for p in front)
    parts.append(f'<polyline class="front" points="{line}"/>')
    parts += [_mark(p, across(x.value(p)), HEIGHT - up(y.value(p)), result) for p in reversed(result.points)]
    return "".join(parts)


def _refused(x: Axis, y: Axis, across: _Scale, up: _Scale) -> str:
    """The part of a panel that the budgets refuse."""
    parts = []
    if x.budget is not None:
        at = across(x.budget)
        parts.append(f'<rect class="refused" x="{at}" width="{WIDTH - at}" height="{HEIGHT}"/>')
        parts.append(f'<line class="budget" x1="{at}" x2="{at}" y1="0" y2="{HEIGHT}"/>')
    if y.budget is not None:
        at = HEIGHT - up(y.budget)
        parts.append(f'<rect class="refused" y="{at}" width="{WIDTH}" height="{HEIGHT - at}"/>')
        parts.append(f'<line class="budget" x1="0" x2="{WIDTH}" y1="{at}" y2="{at}"/>')
    return "".join(parts)


def _front(x: Axis, y: Axis, points: Sequence[Point]) -> list[Point]:
    """The networks that none of less cost reaches."""
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (x.value(p), -y.value(p))):
        if not found or y.value(point) > y.value(found[-1]):
            found.append(point)
    return found


def _mark(point: Point, x: float, y: float, result: SearchResult) -> str:
    kind = "base" if point == result.base else "kept" if point in result.pareto else "beaten"
    told = (
        f"{point.bytes / 1e6:.2f} MB, {point.latency_ms:.3g} ms, {decibel(point.sqnr_db)} dB, "
        f"{100 * point.agreement:.1f} % agreement; {counted(len(point.rules), 'rule')}"
    )
    title = f"<title>{escape(told)}</title>"
    ring = f'<circle class="best" cx="{x}" cy="{y}" r="8"/>' if point == result.best else ""
    return f'<g>{title}<circle class="{kind}" cx="{x}" cy="{y}" r="5"/>{ring}</g>'
