"""Pictures of a graph: SVG laid out here, so no other program is needed, and DOT for those who have one.

Names may come from files: everything is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

from megengine.core.dtype import QuantizedDType
from megengine.traced_module.expr import Apply, CallFunction, CallMethod, Constant, Expr, GetAttr, Input
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.node import ModuleNode, TensorNode

K = TypeVar("K", bound=Hashable)
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 40, 26, 26, 14
COLOURS = {
    "input": "#dbe7f5",
    "weighted": "#cfe8d5",
    "integer": "#f6e3bd",
    "move": "#eceff3",
    "other": "#ffffff",
}
WEIGHTED = (
    *("conv2d", "conv_transpose2d", "matmul", "linear", "fused_conv2d", "fused_linear", "qconv2d", "qlinear"),
    *("Conv2d", "ConvTranspose2d", "Linear", "ConvRelu2d", "ConvBn2d", "ConvBnRelu2d", "LinearRelu"),
)
MOVES = ("reshape", "transpose", "concat", "slice", "pad", "broadcast_to", "split", "cast")


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


def shown(graph: InternalGraph) -> list[Expr]:
    """Expressions that are drawn: constants, and layers and tensors of the module, are part of the call that uses them.

    Of a graph at module level the calls of this level are drawn; flatten it to see the inside of its submodules.
    """
    return [expr for expr in graph.exprs(recursive=False) if not _is_part(expr)]


def _is_part(expr: Expr) -> bool:
    module_itself = isinstance(expr, Input) and isinstance(expr.outputs[0], ModuleNode)
    return isinstance(expr, (Constant, GetAttr)) or module_itself


def layout(graph: InternalGraph) -> dict[int, Box]:
    """A row is the longest way from an input; a column stays below the first operand where it is free."""
    return place((id(expr), expr, [id(n.expr) for n in expr.inputs]) for expr in shown(graph))


def place(items: Iterable[tuple[K, Expr, Sequence[K]]]) -> dict[K, Box]:
    """Boxes of (key, expression, keys of what it is drawn below), given in an order in which operands come first."""
    boxes: dict[K, Box] = {}
    taken: set[tuple[int, int]] = set()
    for key, expr, operands in items:
        before = [boxes[operand] for operand in operands if operand in boxes]
        row = 1 + max((box.row for box in before), default=-1)
        column = before[0].column if before else 0
        while (row, column) in taken:
            column += 1
        taken.add((row, column))
        boxes[key] = Box(expr, row, column)
    return boxes


def extent(boxes: Iterable[Box]) -> tuple[int, int]:
    """Width and height in pixels of a picture of these boxes."""
    boxes = list(boxes)
    columns, rows = (1 + max((getattr(b, at) for b in boxes), default=0) for at in ("column", "row"))
    return 2 * MARGIN + columns * (BOX_WIDTH + GAP_X), 2 * MARGIN + rows * (BOX_HEIGHT + GAP_Y)


def to_svg(graph: InternalGraph) -> str:
    """The graph as one SVG element with its own styles; a tooltip tells module path, source line and attributes."""
    boxes = layout(graph)
    taken = {(box.row, box.column) for box in boxes.values()}
    pairs = [(boxes[id(n.expr)], box) for box in boxes.values() for n in box.expr.inputs if id(n.expr) in boxes]
    edges = [edge_svg(start, end, taken) for start, end in pairs]
    return svg(*extent(boxes.values()), [*edges, *(_box(box, graph) for box in boxes.values())])


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


def _box(box: Box, graph: InternalGraph) -> str:
    output = any(n is o for n in box.expr.outputs for o in graph.outputs)
    return box_svg(box, fill=COLOURS[kind_of(box.expr)], stroke="#b42318" if output else "#5b6576")


def box_svg(box: Box, *, fill: str, stroke: str, notes: Sequence[str] = ()) -> str:
    """A box with its two lines; the tooltip begins with the notes."""
    title, below = _lines(box.expr)
    tooltip = printable("\n".join([*notes, _tooltip(box.expr)]))
    return (
        f'<g><title>{escape(tooltip)}</title><rect x="{box.left}" y="{box.top}" width="{BOX_WIDTH}" '
        f'height="{BOX_HEIGHT}" rx="6" fill="{fill}" stroke="{stroke}"/>'
        f'<text x="{box.middle}" y="{box.top + 17}" text-anchor="middle" font-weight="600" fill="#1c2330">'
        f"{escape(title)}</text>"
        f'<text x="{box.middle}" y="{box.top + 31}" text-anchor="middle" fill="#5b6576">{escape(below)}</text></g>'
    )


def kind_of(expr: Expr) -> str:
    """Key of the expression's colour in COLOURS."""
    if isinstance(expr, Input):
        return "input"
    if any(isinstance(n.spec.dtype, QuantizedDType) for n in expr.outputs):
        return "integer"
    called = called_name(expr)
    return "weighted" if called in WEIGHTED else "move" if called in MOVES else "other"


def called_name(expr: Expr) -> str:
    """What an expression applies or calls, in a word: an op, a function, a method, the class of a layer."""
    if isinstance(expr, Apply):
        return expr.op
    if isinstance(expr, CallFunction):
        return expr.qualified.rpartition(".")[2]
    if isinstance(expr, CallMethod):
        return expr.method.strip("_") if expr.method != "__call__" else expr.inputs[0].module_type.__name__
    return expr.kind.lower()


def _lines(expr: Expr) -> tuple[str, str]:
    op = called_name(expr)
    return shortened(f"{op}  {expr.name}"), shortened(", ".join(_spec(n) for n in expr.outputs))


def _spec(node: TensorNode) -> str:
    shape = "x".join(map(str, node.spec.shape)) or "scalar"
    dtype = node.spec.dtype
    return f"{shape} {dtype.name}"


def shortened(text: str, limit: int = 34) -> str:
    """The text without control characters, cut to a length."""
    text = printable(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def printable(text: str) -> str:
    """The text with a mark for every character that is neither visible nor a line end."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def _tooltip(expr: Expr) -> str:
    lines = [repr(expr)[:600]]
    lines += [f"{key}: {expr.meta[key]}" for key in ("module", "source", "passes") if expr.meta.get(key)]
    fixed = [n for n in expr.inputs if isinstance(n, TensorNode) and isinstance(n.expr, (Constant, GetAttr))]
    weights = [f"{n.name}: {_spec(n)}" for n in fixed]
    return printable("\n".join(lines + weights))


def to_dot(graph: InternalGraph) -> str:
    """The graph in Graphviz's language."""
    names = {id(expr): f"n{index}" for index, expr in enumerate(shown(graph))}
    lines = [f"digraph {_quoted(graph.name)} {{", '  node [shape=box, style="rounded,filled", fontname="sans-serif"];']
    for expr in shown(graph):
        label = _quoted("\n".join(_lines(expr)))
        lines.append(f"  {names[id(expr)]} [label={label}, fillcolor={_quoted(COLOURS[kind_of(expr)])}];")
    for expr in shown(graph):
        lines += [f"  {names[id(n.expr)]} -> {names[id(expr)]};" for n in expr.inputs if id(n.expr) in names]
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    """A DOT string: quotes and backslashes escaped, line ends kept."""
    return json.dumps(printable(text), ensure_ascii=False)
