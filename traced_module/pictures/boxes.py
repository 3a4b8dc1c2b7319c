"""SVG elements of pictures: boxes with two lines of text and a tooltip, and a legend.

Names may come from files: everything is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from megengine.core.dtype import QuantizedDType
from megengine.dispatch.record import no_macs, registry
from megengine.traced_module.ir.expr import Apply, CallFunction, CallMethod, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.pictures.texts import fitted, printable, shape_text, shortened

BOX_WIDTH, BOX_HEIGHT = 220, 40
COLOURS = {  # kind of a box -> (its colour, its meaning in the legend)
    "input": ("#dbe7f5", "input"),
    "weighted": ("#cfe8d5", "convolution, matrix product"),
    "integer": ("#f6e3bd", "quantized"),
    "move": ("#e4e8ee", "moves data only"),
    "other": ("#ffffff", "other"),
    "fold": ("#eae4f6", "holds more"),
}
LAYERS = ("linear", "Conv2d", "ConvTranspose2d", "Linear", "ConvRelu2d", "ConvBn2d", "ConvBnRelu2d", "LinearRelu")


def svg(width: int, height: int, parts: Iterable[str]) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="system-ui, sans-serif" font-size="11">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *parts,
            "</svg>",
        ]
    )


def text_box(
    left: float, top: float, texts: tuple[str, str], notes: Sequence[str], *, fill: str, stroke: str, extra: str = ""
) -> str:
    """A box with two lines of text and a tooltip; `extra` are more attributes of its rectangle."""
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
    return f"<title>{escape(printable(chr(10).join(notes)))}</title>"


def legend_svg(left: float, top: float, entries: Sequence[tuple[str, str, str]]) -> str:
    parts = []
    for fill, stroke, meaning in entries:
        parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="18" height="12" rx="3" fill="{fill}" stroke="{stroke}"/>'
            f'<text x="{left + 24:g}" y="{top + 10:g}" fill="#5b6576">{escape(meaning)}</text>'
        )
        left += 46 + 6 * len(meaning)
    return "".join(parts)


def legend_width(entries: Sequence[tuple[str, str, str]]) -> int:
    return sum(46 + 6 * len(meaning) for _, _, meaning in entries)


def kind_of(expr: Expr) -> str:
    if isinstance(expr, Input):
        return "input"
    tensors = [n for n in (*expr.outputs, *expr.inputs) if isinstance(n, TensorNode)]
    if any(isinstance(n.spec.dtype, QuantizedDType) for n in tensors):
        return "integer"
    callee = called_name(expr)
    record = registry.get(callee)
    if callee in LAYERS or (record is not None and record.macs is not no_macs):
        return "weighted"
    moves = record is not None and (record.joins or (record.moves and callee != "max_pool2d"))  # it compares values
    return "move" if moves else "other"


def called_name(expr: Expr) -> str:
    """What an expression applies or calls: an op, a function, a method, or the class of a layer.

    A traced submodule has the class of the module that it was traced from.
    """
    if isinstance(expr, Apply):
        return expr.op
    if isinstance(expr, CallFunction):
        return expr.qualified.rpartition(".")[2]
    if isinstance(expr, CallMethod) and expr.method == "__call__":
        return getattr(expr.inputs[0].owner, "origin", None) or expr.inputs[0].module_type.__name__
    return expr.method.strip("_") if isinstance(expr, CallMethod) else expr.kind.lower()


def lines(expr: Expr) -> tuple[str, str]:
    """The two lines of an expression's box."""
    return f"{called_name(expr)}  {expr.name}", ", ".join(spec_text(n) for n in expr.outputs)


def spec_text(value: Any) -> str:
    """Shape and dtype of a node or tensor; of quantized values, scale and zero point."""
    return f"{shape_text(value.spec.shape)} {value.spec.dtype}"


def tooltip(expr: Expr) -> str:
    """The expression as it prints, its provenance, its weights."""
    lines = [repr(expr)[:600].replace("\t", " ")]
    lines += [f"{key}: {str(expr.meta[key])[:300]}" for key in ("module", "source", "passes") if expr.meta.get(key)]
    fixed = [n for n in expr.inputs if isinstance(n, TensorNode) and isinstance(n.expr, (Constant, GetAttr))]
    weights = [f"{n.name}: {spec_text(n)}" for n in fixed]
    return printable("\n".join(lines + weights))
