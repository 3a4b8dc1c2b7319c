"""Pictures of a graph with its hierarchy, as SVG and PNG, in a layout of its own: no other program is needed.

Submodules, and in flat graphs the calls of one module, stand in frames; `depth` levels of them are opened. Names may
come from files: everything is escaped.
"""

from __future__ import annotations

import io
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from megengine.core.errors import GraphError
from megengine.core.notebook import html_picture
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.nesting import nests
from megengine.traced_module.pictures.boxes import (
    BOX_HEIGHT,
    BOX_WIDTH,
    COLOURS,
    called_name,
    kind_of,
    legend_svg,
    legend_width,
    lines,
    spec_text,
    svg,
    text_box,
    title_svg,
    tooltip,
)
from megengine.traced_module.pictures.hierarchy import Item, Sheet, levels, results, sheet_of
from megengine.traced_module.pictures.texts import shortened

HEAD, LEGEND, MOST_PIXELS, LONGEST_SIDE = 28, 34, 100_000_000, 32_000
SMALLEST_SCALE = 0.5  # at which names can still be read
MOST_BOXES = 120  # in a picture of a notebook
GAP_X, GAP_Y, MARGIN = 26, 26, 14
EDGE, INK, RESULT, OPEN = "#8a94a6", "#5b6576", "#b42318", "#f2f4f8"


def to_svg(graph: InternalGraph, *, depth: int | None = None) -> str:
    """The graph as one SVG element with its own styles; tooltips show module path, source line and attributes.

    Args:
        graph: at either level; of a traced module, `traced.graph`.
        depth: how many levels of submodules and module paths are opened, all by default.

    Example:
        >>> Path("net.svg").write_text(to_svg(traced.graph, depth=1), encoding="utf-8")  # doctest: +SKIP
    """
    return _drawn(graph, depth)[2]


def in_notebook(graph: InternalGraph) -> str:
    """The picture of `to_svg` with as many open levels as have at most 120 boxes; at least the outermost sheet."""
    depth = 0
    while _boxes(sheet_of(graph), depth) < _boxes(sheet_of(graph), depth + 1) <= MOST_BOXES:
        depth += 1
    return to_svg(graph, depth=depth)


def notebook_svg(graphs: Sequence[InternalGraph]) -> str | None:
    """The first graph of a model, for notebooks that show pictures only."""
    return in_notebook(graphs[0]) if graphs else None


def notebook_html(graphs: Sequence[InternalGraph]) -> str | None:
    """All graphs of a model, for notebooks."""
    return "".join(html_picture(in_notebook(graph), graph.name) for graph in graphs) or None


def _boxes(sheet: Sheet, depth: int) -> int:
    return sum(1 if item.inside is None or depth == 0 else 1 + _boxes(item.inside, depth - 1) for item in sheet.items)


def to_png(graph: InternalGraph, *, depth: int | None = None, scale: float | None = None) -> bytes:
    """The picture of `to_svg` as a PNG file; `scale` pixels for each of the SVG's.

    By default the scale is 2, or for large pictures as much less as they need, down to a half.

    Raises:
        GraphError: the package resvg_py is not installed, or the picture would be too large.
    """
    width, height, text = _drawn(graph, depth)
    if scale is None:
        room = min(LONGEST_SIDE / max(width, height), (MOST_PIXELS / (width * height)) ** 0.5)
        scale = min(2.0, max(SMALLEST_SCALE, math.floor(room * 100) / 100))
    if max(width, height) * scale > LONGEST_SIDE or width * height * scale * scale > MOST_PIXELS:
        raise GraphError(
            f"to_png: the picture would be {width * scale:,.0f} x {height * scale:,.0f}, in pixels; expected at most "
            f"{LONGEST_SIDE:,} each way and {MOST_PIXELS:,} in all; open fewer levels (depth=1), draw one module, or "
            "write SVG"
        )
    try:
        import resvg_py
    except ImportError:
        raise GraphError(
            "to_png: needs the package resvg_py; run `pip install resvg_py`, or write SVG, which browsers "
            "show and print"
        ) from None
    with tempfile.TemporaryDirectory() as folder:
        return bytes(resvg_py.svg_to_bytes(svg_string=text, zoom=scale, **_fonts(resvg_py, Path(folder))))


def _fonts(resvg_py: Any, folder: Path) -> dict[str, Any]:
    """Options that name a font if the system has none: the font of Pillow, which has Latin letters only."""
    empty, letter = (
        bytes(
            resvg_py.svg_to_bytes(svg_string=f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{t}</svg>')
        )
        for t in ("", '<text y="9" font-family="system-ui, sans-serif" font-size="11">M</text>')
    )
    if empty != letter:
        return {}
    from PIL import ImageFont

    font = ImageFont.load_default(11)
    if not isinstance(font, ImageFont.FreeTypeFont) or not isinstance(font.path, io.BytesIO):
        return {}
    path = folder / "font.ttf"
    path.write_bytes(font.path.getvalue())
    return {"font_files": [str(path)], "sans_serif_family": font.getname()[0]}


# ------------------------------------------------------------------ SVG


@dataclass(slots=True)
class _Cell:
    item: Item
    inner: Layout | None
    x: float = 0
    y: float = 0
    width: float = BOX_WIDTH
    height: float = BOX_HEIGHT


@dataclass(slots=True)
class Layout:
    """A sheet with the places of its boxes, from its upper left corner."""

    sheet: Sheet
    cells: list[_Cell]
    rights: list[float] = field(default_factory=list)  # of each column, where the lane beside it begins
    tops: list[float] = field(default_factory=list)
    bottoms: list[float] = field(default_factory=list)
    width: float = 0
    height: float = 0


@nests()
def _drawn(graph: InternalGraph, depth: int | None) -> tuple[int, int, str]:
    sheet = sheet_of(graph)
    layout = measured(sheet, levels(depth))
    entries = [(colour, INK, meaning) for kind, (colour, meaning) in COLOURS.items() if kind in _kinds(layout)]
    entries.append(("#ffffff", RESULT, "output"))
    width, height = round(max(layout.width, legend_width(entries) + MARGIN)), round(layout.height + LEGEND)
    return width, height, svg(width, height, [*_parts(layout), legend_svg(MARGIN, layout.height + 8, entries)])


def _kinds(layout: Layout) -> set[str]:
    kinds = {kind(cell.item) for cell in layout.cells if cell.inner is None}
    return kinds.union(*(_kinds(cell.inner) for cell in layout.cells if cell.inner is not None))


def measured(sheet: Sheet, depth: float) -> Layout:
    """The places of the boxes of a sheet, of which `depth` levels are opened."""
    layout = Layout(sheet, [])
    for item in sheet.items:
        cell = _Cell(item, measured(item.inside, depth - 1) if item.inside is not None and depth > 0 else None)
        if cell.inner is not None:
            cell.width, cell.height = max(BOX_WIDTH, cell.inner.width), HEAD + cell.inner.height
        layout.cells.append(cell)
    widths, heights = ([0.0] * (1 + max((getattr(i, at) for i in sheet.items), default=0)) for at in ("column", "row"))
    for cell in layout.cells:
        row, column = cell.item.row, cell.item.column
        widths[column], heights[row] = max(widths[column], cell.width), max(heights[row], cell.height)
    x, y = float(MARGIN), float(MARGIN)
    for width in widths:
        x += width + GAP_X
        layout.rights.append(x - GAP_X)
    for height in heights:
        layout.tops.append(y)
        y += height + GAP_Y
        layout.bottoms.append(y - GAP_Y)
    for cell in layout.cells:
        column = cell.item.column
        cell.x = layout.rights[column] - widths[column] / 2 - cell.width / 2
        cell.y = layout.tops[cell.item.row]
    layout.width, layout.height = x - GAP_X + MARGIN + 10, y - GAP_Y + MARGIN
    return layout


def _parts(layout: Layout) -> Iterator[str]:
    """Elements of a sheet: edges, boxes above them, frames with their sheets."""
    busy = rows_of_columns(layout)
    yield from (edge_svg(layout, busy, number) for number in range(len(layout.sheet.edges)))
    returned = layout.sheet.returned()
    for number, cell in enumerate(layout.cells):
        stroke = RESULT if number in returned else INK
        if cell.inner is None:
            yield _closed(cell, stroke)
        else:
            head = escape(shortened(texts(cell.item)[0], round(cell.width / 7.5)))
            yield (
                f'<g transform="translate({cell.x:g},{cell.y:g})"><g>{title_svg(_notes(cell.item))}'
                f'<rect width="{cell.width:g}" height="{cell.height:g}" rx="6" fill="{OPEN}" stroke="{stroke}"/>'
                f'<text x="10" y="18" font-weight="600" fill="#1c2330">{head}</text></g>'
                f'<g transform="translate(0,{HEAD})">'
            )
            yield from _parts(cell.inner)
            yield "</g></g>"


def rows_of_columns(layout: Layout) -> list[set[int]]:
    """The rows of each column in which there are boxes."""
    busy: list[set[int]] = [set() for _ in layout.rights]
    for cell in layout.cells:
        busy[cell.item.column].add(cell.item.row)
    return busy


def edge_svg(layout: Layout, busy: Sequence[set[int]], number: int, *, colour: str = EDGE, dashed: bool = False) -> str:
    """The line of an edge: down in its own column or, past other boxes, in the lane beside it; over in the last gap."""
    start, end = (layout.cells[index] for index in layout.sheet.edges[number])
    x0, y0, x1, y1 = start.x + start.width / 2, start.y + start.height, end.x + end.width / 2, end.y
    turn, half = layout.tops[end.item.row] - GAP_Y, GAP_Y / 2
    between = range(start.item.row + 1, end.item.row)
    x, aside = x0, ""
    if any(row in busy[start.item.column] for row in between):
        x, leave = layout.rights[start.item.column] + 6 + number % 4 * 5, layout.bottoms[start.item.row]
        aside = f"V{leave:g} C{x0:g},{leave + half:g} {x:g},{leave + half / 2:g} {x:g},{leave + GAP_Y:g} "
    path = f"M{x0:g},{y0:g} {aside}V{turn:g} C{x:g},{turn + half:g} {x1:g},{y1 - half:g} {x1:g},{y1:g}"
    style = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.1"{style}/>'


def _closed(cell: _Cell, stroke: str) -> str:
    item = cell.item
    extra = ' stroke-dasharray="4 3"' if item.source is not None else ' stroke-width="2"' if item.inside else ""
    fill, _ = COLOURS[kind(item)]
    return text_box(cell.x, cell.y, texts(item), _notes(item), fill=fill, stroke=stroke, extra=extra)


def kind(item: Item) -> str:
    if item.source is not None:
        return "input"
    return kind_of(item.expr) if item.expr is not None and item.inside is None else "fold"


def texts(item: Item) -> tuple[str, str]:
    if item.source is not None:
        return f"from  {item.source.name}", lines(item.source)[1]
    if item.expr is not None:
        return lines(item.expr)
    return f"{item.title}  ({len(item.made):,})", ", ".join(map(spec_text, results(item)))


def _notes(item: Item) -> list[str]:
    if item.shown is not None:
        return [tooltip(item.shown)]
    return [item.title, ", ".join(f"{count} {name}" for name, count in Counter(map(called_name, item.made)).items())]
