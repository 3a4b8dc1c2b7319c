"""What pictures are made of: boxes with two lines of text and a tooltip, edges, a legend, as elements of SVG.

Names may come from files: everything is escaped.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from megengine.core.dtype import QuantizedDType
from megengine.dispatch.record import no_macs, registry
from megengine.traced_module.ir.expr import Apply, CallFunction, CallMethod, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.node import ModuleNode, TensorNode
from megengine.traced_module.pictures.hierarchy import cells
from megengine.traced_module.pictures.texts import fitted, printable, shortened

K = TypeVar("K", bound=Hashable)
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 220, 40, 26, 26, 14
COLOURS = {
    "input": "#dbe7f5",
    "weighted": "#cfe8d5",
    "integer": "#f6e3bd",
    "move": "#e4e8ee",
    "other": "#ffffff",
    "fold": "#eae4f6",
    "open": "#f2f4f8",
}
MEANINGS = {  # in the legend
    "input": "input",
    "weighted": "convolution, matrix product",
    "integer": "quantized",
    "move": "moves data only",
    "other": "other",
    "fold": "holds more",
}
LAYERS = ("linear", "Conv2d", "ConvTranspose2d", "Linear", "ConvRelu2d", "ConvBn2d", "ConvBnRelu2d", "LinearRelu")


@dataclass(frozen=True, slots=True)
class Box:
    """One drawn expression: its cell in the grid."""

    expr: Expr
    row: int
    column: int

    @property
    def left(self) -> int:
        """Pixels from the left edge."""
        return MARGIN + self.column * (BOX_WIDTH + GAP_X)

    @property
    def top(self) -> int:
        """Pixels from the top edge."""
        return MARGIN + self.row * (BOX_HEIGHT + GAP_Y)

    @property
    def middle(self) -> int:
        """Horizontal centre."""
        return self.left + BOX_WIDTH // 2


def place(items: Iterable[tuple[K, Expr, Sequence[K]]]) -> dict[K, Box]:
    """Boxes of (key, expression, keys of what it is drawn below), given in an order in which operands come first."""
    kept = [(key, expr, operands) for key, expr, operands in items]
    found = cells((key, operands) for key, _, operands in kept)
    return {key: Box(expr, *found[key]) for key, expr, _ in kept}


def extent(boxes: Iterable[Box]) -> tuple[int, int]:
    """Width and height in pixels of a picture of these boxes."""
    boxes = list(boxes)
    columns, rows = (1 + max((getattr(b, at) for b in boxes), default=0) for at in ("column", "row"))
    return 2 * MARGIN + columns * (BOX_WIDTH + GAP_X), 2 * MARGIN + rows * (BOX_HEIGHT + GAP_Y)


def svg(width: int, height: int, parts: Iterable[str]) -> str:
    """An SVG document of these elements on white."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="system-ui, sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>",
        ]
    )


def edge_svg(
    start: Box, end: Box, taken: set[tuple[int, int]], *, colour: str = "#8a94a6", dashed: bool = False
) -> str:
    """Down beside the boxes between the two rows, and over to the target in the last gap."""
    x0, y0, x1, y1 = start.middle, start.top + BOX_HEIGHT, end.middle, end.top
    half, turn = GAP_Y // 2, y1 - GAP_Y
    free = all((row, start.column) not in taken for row in range(start.row + 1, end.row))
    x = x0 if free else start.left + BOX_WIDTH + GAP_X // 2
    aside = "" if free else f"C{x0},{y0 + half} {x},{y0 + half} {x},{y0 + GAP_Y} "
    path = f"M{x0},{y0} {aside}V{turn} C{x},{turn + half} {x1},{y1 - half} {x1},{y1}"
    style = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.1"{style}/>'


def box_svg(box: Box, *, fill: str, stroke: str, notes: Sequence[str] = ()) -> str:
    """The box of an expression with its two lines; the tooltip begins with the notes."""
    return text_box(box.left, box.top, lines(box.expr), [*notes, tooltip(box.expr)], fill=fill, stroke=stroke)


def text_box(
    left: float, top: float, texts: tuple[str, str], notes: Sequence[str], *, fill: str, stroke: str, extra: str = ""
) -> str:
    """A box with two lines of text, a tooltip, and more attributes of its rectangle."""
    middle = left + BOX_WIDTH / 2
    return (
        f'<g>{title_svg(notes)}<rect x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="6" fill="{fill}" stroke="{stroke}"{extra}/>'
        f'<text x="{middle:g}" y="{top + 17:g}" text-anchor="middle" font-weight="600" fill="#1c2330">'
        f"{escape(fitted(texts[0], 33))}</text>"
        f'<text x="{middle:g}" y="{top + 31:g}" text-anchor="middle" fill="#5b6576">'
        f"{escape(shortened(texts[1], 40))}</text></g>"
    )


def title_svg(notes: Sequence[str]) -> str:
    """A tooltip."""
    return f"<title>{escape(printable(chr(10).join(notes)))}</title>"


def legend_svg(left: float, top: float, entries: Sequence[tuple[str, str, str]]) -> str:
    """A row of (fill, stroke, meaning)."""
    parts = []
    for fill, stroke, meaning in entries:
        parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="18" height="12" rx="3" fill="{fill}" stroke="{stroke}"/>'
            f'<text x="{left + 24:g}" y="{top + 10:g}" fill="#5b6576">{escape(meaning)}</text>'
        )
        left += 46 + 6 * len(meaning)
    return "".join(parts)


def legend_width(entries: Sequence[tuple[str, str, str]]) -> int:
    """Pixels that a legend takes."""
    return sum(46 + 6 * len(meaning) for _, _, meaning in entries)


def kind_of(expr: Expr) -> str:
    """Key of the expression's colour in COLOURS."""
    if isinstance(expr, Input):
        return "input"
    tensors = [n for n in (*expr.outputs, *expr.inputs) if isinstance(n, TensorNode)]
    if any(isinstance(n.spec.dtype, QuantizedDType) for n in tensors):
        return "integer"
    called = called_name(expr)
    record = registry.get(called)
    if called in LAYERS or (record is not None and record.macs is not no_macs):
        return "weighted"
    moves = record is not None and record.moves and called != "max_pool2d"  # which chooses what it moves
    return "move" if moves or called == "concat" else "other"


def called_name(expr: Expr) -> str:
    """What an expression applies or calls, in a word: an op, a function, a method, the class of a layer."""
    if isinstance(expr, Apply):
        return expr.op
    if isinstance(expr, CallFunction):
        return expr.qualified.rpartition(".")[2]
    if isinstance(expr, CallMethod):
        return expr.method.strip("_") if expr.method != "__call__" else _class_of(expr.inputs[0])
    return expr.kind.lower()


def _class_of(node: ModuleNode) -> str:
    """The class of the layer; of a traced submodule, that of the module it was traced from."""
    return getattr(node.owner, "origin", None) or node.module_type.__name__


def lines(expr: Expr) -> tuple[str, str]:
    """The two lines of an expression's box."""
    return f"{called_name(expr)}  {expr.name}", ", ".join(spec_text(n) for n in expr.outputs)


def spec_text(node: TensorNode) -> str:
    """Shape and dtype; of quantized values, scale and zero point."""
    return f"{'x'.join(map(str, node.spec.shape)) or 'scalar'} {node.spec.dtype}"


def tooltip(expr: Expr) -> str:
    """The expression as it prints, its provenance, its weights."""
    lines = [repr(expr)[:600].replace("\t", " ")]
    lines += [f"{key}: {str(expr.meta[key])[:300]}" for key in ("module", "source", "passes") if expr.meta.get(key)]
    fixed = [n for n in expr.inputs if isinstance(n, TensorNode) and isinstance(n.expr, (Constant, GetAttr))]
    weights = [f"{n.name}: {spec_text(n)}" for n in fixed]
    return printable("\n".join(lines + weights))
